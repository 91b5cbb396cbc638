"""A schedule on the cluster, from creation to deletion: the CronJob controller starts its runs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s
from kubernetes.config import new_client_from_config
from zenml.models import PipelineRunResponse

from tests.checkout import Checkout
from tests.fakes.language_model import LanguageModel
from tests.on_cluster.cluster_runs import cluster_config, eventually
from tests.on_cluster.constant_model import ANSWER, save_constant_model
from tests.on_cluster.cron_job_proxy import has_cron_jobs, translated
from tests.on_cluster.live_stack import Stack

pytestmark = [pytest.mark.cluster, pytest.mark.schedule, pytest.mark.timeout(10800)]

EVERY = timedelta(minutes=3)
START_WITHIN = timedelta(seconds=30)
LOOKS = timedelta(seconds=30)
"""More than the controller takes to notice that a run is due."""
TINY = {
    "synthetic_train_inboxes": 1,
    "synthetic_test_inboxes": 1,
    "synthetic_questions_per_inbox": 24,
    "demonstrations": 2,
    "max_steps": 1,
    "validate_every": 0,
    "groups_per_step": 1,
    "max_extra_groups": 0,
    "rollouts_per_group": 2,
    "max_tokens": 16,
    "lora_layers": 2,
    "max_context": 8192,
    "backend": "torch",
    "scoring": "verifiable",
    "eval_limit": 2,
    "min_gain": -1.0,  # the base gives the same answer
    "accepted_alerts": ["unread_answer"],  # the constant answer is given without reading a mail
}


class Judge(LanguageModel):
    """Accepts the constant answer."""

    seconds = 40.0
    """Per verdict: on a quick machine the first run would be over before another one is due."""

    def answer(self, request: dict[str, Any]) -> str:
        time.sleep(self.seconds)
        candidate = json.loads(request["messages"][-1]["content"])["candidate"]
        return json.dumps({"reasoning": "as expected", "accept": candidate == ANSWER})


class Schedule:
    """What the tests look at: run.py's schedules, the cluster's objects, and ZenML's runs."""

    def __init__(self, stack: Stack, project: Checkout, kubeconfig: Path) -> None:
        self.project = Checkout(project.folder, project.environment | {"KUBECONFIG": str(kubeconfig)})
        api = new_client_from_config(str(kubeconfig))
        self._stack, self._namespace = stack, stack.cluster.namespace
        self._batch, self._core = k8s.BatchV1Api(api), k8s.CoreV1Api(api)
        self._before = self.objects()

    def command(self, *words: str) -> tuple[int, str]:
        done = self.project.run(*words, idle_seconds=1500)
        return done.returncode, done.stdout + done.stderr

    def cron_job(self) -> k8s.V1CronJob:
        [cron_job] = self._batch.list_namespaced_cron_job(self._namespace).items
        return cron_job

    def due(self) -> datetime:
        """When the newest run was due."""
        due = self.cron_job().status.last_schedule_time
        assert isinstance(due, datetime)
        return due

    def runs(self) -> list[PipelineRunResponse]:
        """Oldest first."""
        found = self._stack.client.list_pipeline_runs(
            pipeline="retraining_pipeline", sort_by="asc:created", hydrate=True
        )
        return list(found.items)

    def run(self, number: int) -> PipelineRunResponse:
        """Wait until run `number` has started, and return it."""
        eventually(lambda: len(self.runs()) >= number)
        return self.runs()[number - 1]

    def ended(self, number: int) -> PipelineRunResponse:
        eventually(lambda: self.over(number))
        return self.runs()[number - 1]

    def over(self, number: int) -> bool:
        run = self.runs()[number - 1]
        return run.status.is_finished and run.end_time is not None

    def objects(self) -> set[str]:
        """CronJobs, jobs, pods and tokens in the namespace."""
        kinds = {
            "cronjob": self._batch.list_namespaced_cron_job,
            "job": self._batch.list_namespaced_job,
            "pod": self._core.list_namespaced_pod,
            "secret": self._core.list_namespaced_secret,
        }
        found = {
            f"{kind} {item.metadata.name}" for kind, listed in kinds.items() for item in listed(self._namespace).items
        }
        return {name for name in found if not name.startswith("secret email-agent-token")}

    def left(self) -> set[str]:
        return self.objects() - self._before


@pytest.fixture(scope="module")
def life(stack: Stack, project: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """One schedule: a run, a pause that begins meanwhile, a second run, and the end. What was seen on the way."""
    folder = tmp_path_factory.mktemp("schedule")
    base = save_constant_model(folder / "base")
    given = Path(os.environ["KUBECONFIG"])
    translation = nullcontext(given) if has_cron_jobs(stack.cluster.api) else translated(given, folder)
    with Judge() as judge, translation as kubeconfig:
        schedule = Schedule(stack, project, kubeconfig)
        settings = TINY | {"judge": "llm", "judge_model": "openai/judge", "judge_api_base": judge.url}
        orchestrator = {"starting_deadline_seconds": int(START_WITHIN.total_seconds())}
        config = cluster_config(
            project, "training_k8s.yaml", base, orchestrator=orchestrator, gpu=False, base_model=str(base), **settings
        )
        seen: dict[str, Any] = {}
        code, output = schedule.command("--pipeline", "train", "--config", config, "--schedule", "*/3 * * * *")
        assert code == 0, output
        name = re.findall(r"scheduled: (\S+)", output)[0]
        schedule.run(1)
        seen["first due"] = schedule.due()
        eventually(lambda: datetime.now(UTC) > seen["first due"] + EVERY + LOOKS or schedule.over(1))
        seen["skipped"] = len(schedule.runs()) == 1 and not schedule.over(1)
        judge.seconds = 0.0
        seen["paused"] = schedule.command("--schedule-pause", name)
        seen["listed"] = schedule.command("--schedule-list")
        seen["first"] = schedule.ended(1)
        assert seen["first"].status.value == "completed", "all else depends on it"
        due_in_pause = next_due(datetime.now(UTC))
        eventually(lambda: datetime.now(UTC) > due_in_pause + LOOKS)
        seen["runs in the pause"] = len(schedule.runs()) - 1
        seen["resumed"], seen["resumed at"] = schedule.command("--schedule-resume", name), datetime.now(UTC)
        schedule.run(2)
        seen["second due"] = schedule.due()
        seen["refused"] = schedule.command("--schedule-delete", name)
        seen["second"] = schedule.ended(2)
        eventually(lambda: not schedule.cron_job().status.active)
        seen["deleted"] = schedule.command("--schedule-delete", name)
        eventually(lambda: not schedule.left())
        seen["listed at the end"] = schedule.command("--schedule-list")
        seen["runs"] = schedule.runs()
        yield seen


def next_due(after: datetime) -> datetime:
    hour = after.replace(minute=0, second=0, microsecond=0)
    return hour + ((after - hour) // EVERY + 1) * EVERY


def gate(run: PipelineRunResponse) -> dict[str, Any]:
    promotion: dict[str, Any] = run.steps["compute_metrics"].outputs["metrics"][0].load()["promotion"]
    return promotion


def test_the_first_run_trains_evaluates_and_promotes(stack: Stack, life: dict[str, Any]) -> None:
    first = life["first"]
    assert {name: step.status.value for name, step in first.steps.items()} == dict.fromkeys(first.steps, "completed")
    history = first.steps["train_agent"].outputs["training_history"][0].load()
    assert [row["step"] for row in history] == [0, 1]
    reason = "100.0% correct, and there is no other version to compare with"
    assert gate(first) == {"promoted": True, "reason": reason}


def test_the_second_run_reuses_data_and_meets_the_gate(stack: Stack, life: dict[str, Any]) -> None:
    first, second = life["first"], life["second"]
    states = {name: step.status.value for name, step in second.steps.items()}
    assert [states[name] for name in ("create_database", "load_scenarios", "train_agent")] == [
        "cached",
        "cached",
        "completed",
    ]
    assert first.model_version.id != second.model_version.id
    assert gate(second)["promoted"] and "not worse: of 2 questions 0 only by this version" in gate(second)["reason"]
    assert stack.client.get_model_version(second.model_version.model.id, "production").id == second.model_version.id


def test_a_run_that_is_due_while_another_runs_is_skipped(life: dict[str, Any]) -> None:
    if life["first"].end_time.replace(tzinfo=UTC) < life["first due"] + EVERY + LOOKS:
        pytest.skip("the first run had ended before another one was due")
    assert life["skipped"]


def test_a_pause_starts_nothing_and_ends_nothing(life: dict[str, Any]) -> None:
    assert life["paused"][0] == 0 and "paused" in life["listed"][1]
    assert life["first"].status.value == "completed", "it was under way when the pause began"
    assert life["runs in the pause"] == 0


def test_a_resumed_schedule_starts_with_what_is_due_next(life: dict[str, Any]) -> None:
    assert life["resumed"][0] == 0
    assert life["second due"] > life["resumed at"] - START_WITHIN - LOOKS


def test_deletion_waits_for_a_run_and_leaves_nothing_behind(life: dict[str, Any]) -> None:
    code, output = life["refused"]
    assert code == 2 and "a run is under way" in output and "Traceback" not in output
    assert life["second"].status.value == "completed"
    assert life["deleted"][0] == 0 and "no schedules" in life["listed at the end"][1]
    assert len(life["runs"]) == 2, "its past runs stay"
