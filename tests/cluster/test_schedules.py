"""Cron expressions, and schedules from creation to deletion: ZenML's own client and orchestrator on an emulated API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import ValidationError
from urllib3 import Retry
from zenml.client import Client

from cluster import schedules
from commands.schedules import delete_schedule, list_schedules, schedule_retraining, set_schedule
from commands.tasks import run_task
from configs.loading import load_config
from tests.fakes.kubernetes import ApiServer, require_valid
from training.errors import BadInput

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "expression",
    ["0 2 * * *", "*/15 0-6 1,15 * mon-fri", "5/10 2 ? JAN SUN", "@daily", "59 23 31 12 6", " 0  2 * * * "],
)
def test_accepted_cron_expressions(expression: str) -> None:
    schedules.require_cron(expression)


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("", "it does not have five fields"),
        ("0 2 * *", "it does not have five fields"),
        ("0 0 2 * * *", "it does not have five fields"),
        ("@nightly", "five fields are needed"),
        ("60 2 * * *", "out of range"),
        ("0 24 * * *", "out of range"),
        ("0 2 0 * *", "out of range"),
        ("0 2 * 13 *", "out of range"),
        ("*/0 2 * * *", "step '0' in field 0"),
        ("0 2, * * *", "[0 2, * * *] is not acceptable"),
        ("H 2 * * *", "Hashed definitions"),
        ("-1 2 * * *", "negative numbers not allowed"),
        ("٣ 2 * * *", "[٣ 2 * * *] is not acceptable"),
    ],
)
def test_rejected_cron_expressions(expression: str, named: str) -> None:
    with pytest.raises(BadInput) as caught:
        schedules.require_cron(expression)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_expressions_that_only_the_cluster_refuses_leave_no_schedule(
    cluster: ApiServer, kubernetes_stack: Client
) -> None:
    for expression in ("0 2 * * 7", "0 2 * * mon-sun", "30-10 2 * * *", "0 2 L * *"):
        schedules.require_cron(expression)
    cluster.failing["/apis/batch/v1/namespaces/zenml/cronjobs"] = 422
    with pytest.raises(BadInput, match="^--schedule: ") as caught:
        create("0 2 * * 7")
    assert "\n" not in str(caught.value) and schedules.all_schedules() == []


@pytest.fixture
def scheduled(kubernetes_stack: Client) -> str:
    """The name of a schedule of training_k8s.yaml, without its GPU step operator."""
    create()
    (schedule,) = schedules.all_schedules()
    return schedule.name


def create(cron: str = "0 2 * * *") -> None:
    config = load_config(ROOT / "configs" / "training_k8s.yaml", ["scoring=verifiable", "judge=exact"])
    docker = {"skip_build": True, "parent_image": "registry.example.com/agent:1"}
    config = config.model_copy(update={"settings": {**config.settings, "docker": docker}, "step_settings": {}})
    schedule_retraining(config, cron)


def cron_job(cluster: ApiServer) -> dict[str, Any]:
    (job,) = cluster.of_kind("cronjobs")
    return job


def test_the_cronjob_that_zenml_submits(cluster: ApiServer, scheduled: str) -> None:
    job = cron_job(cluster)
    require_valid(job)
    spec = job["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("0 2 * * *", "Forbid")
    # Without it Kubernetes makes up for runs that a pause or a long run prevented, and gives up after 100 of them.
    assert spec["startingDeadlineSeconds"] == 300
    assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (3, 3)
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "email-agent"
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/agent:1"
    assert "nvidia" not in str(job), "the orchestrator's own pod needs no GPU"


def test_the_schema_would_notice_a_mistake(cluster: ApiServer, scheduled: str) -> None:
    job = cron_job(cluster)
    job["spec"]["concurencyPolicy"] = job["spec"].pop("concurrencyPolicy")
    with pytest.raises(ValidationError, match="concurencyPolicy"):
        require_valid(job)


def test_scheduled_training_is_never_cached_and_makes_a_version_each_time(
    kubernetes_stack: Client, scheduled: str
) -> None:
    snapshot = kubernetes_stack.list_snapshots(sort_by="desc:created", size=1, hydrate=True, named_only=False).items[0]
    assert snapshot.schedule is not None and snapshot.schedule.name == scheduled
    model = snapshot.pipeline_configuration.model
    assert model is not None and model.version is None
    assert set(snapshot.step_configurations) == {
        "check_source",
        "create_database",
        "load_scenarios",
        "setup_art_model",
        "train_agent",
        "run_inference",
        "find_production",
        "ask_production",
        "compute_metrics",
    }
    for looked_up in ("check_source", "find_production", "train_agent", "compute_metrics"):
        assert snapshot.step_configurations[looked_up].config.enable_cache is False
    assert snapshot.step_configurations["find_production"].spec.upstream_steps == ["train_agent"]


def test_paused_resumed_and_deleted(cluster: ApiServer, scheduled: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_schedule(scheduled, active=False)
    assert cron_job(cluster)["spec"]["suspend"] is True
    list_schedules()
    assert f'{scheduled}  "0 2 * * *"  paused' in capsys.readouterr().out
    # ZenML's server rejects the token of an inactive schedule, and with it the run that is under way.
    assert [schedule.active for schedule in schedules.all_schedules()] == [True]
    set_schedule(scheduled, active=False)
    assert "was paused already" in capsys.readouterr().out
    set_schedule(scheduled, active=True)
    assert cron_job(cluster)["spec"]["suspend"] is False
    delete_schedule(scheduled)
    assert not cluster.of_kind("cronjobs") and not schedules.all_schedules()
    create()  # the name is free again
    assert [schedule.name for schedule in schedules.all_schedules()] == [scheduled]


def test_a_schedule_whose_run_is_under_way_is_not_deleted(cluster: ApiServer, scheduled: str) -> None:
    cron_job(cluster)["status"] = {"active": [{"kind": "Job", "name": "retraining-1"}]}
    with pytest.raises(BadInput, match="a run is under way .*: kubectl delete job retraining-1 -n zenml"):
        schedules.delete(scheduled)
    assert cron_job(cluster) and [schedule.name for schedule in schedules.all_schedules()] == [scheduled]


def test_the_token_goes_with_its_schedule(cluster: ApiServer, scheduled: str) -> None:
    job = cron_job(cluster)
    for name in ("zenml-token-1", "zenml-token-of-another-schedule"):
        cluster.put(f"/api/v1/namespaces/zenml/secrets/{name}")
    token = {"secretKeyRef": {"name": "zenml-token-1", "key": "zenml_api_token"}}
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "ZENML_STORE_API_TOKEN", "valueFrom": token})
    cluster.failing["/api/v1/namespaces/zenml/secrets"] = 403
    with pytest.raises(BadInput, match="403"):
        schedules.delete(scheduled)
    cluster.failing.clear()
    schedules.delete(scheduled)
    assert [secret["metadata"]["name"] for secret in cluster.of_kind("secrets")] == ["zenml-token-of-another-schedule"]


def test_one_retraining_has_one_schedule(cluster: ApiServer, scheduled: str) -> None:
    with pytest.raises(BadInput, match=f"{scheduled} exists already .*--schedule-delete {scheduled}"):
        create("0 3 * * *")
    assert len(cluster.of_kind("cronjobs")) == 1


def test_a_schedule_refused_by_the_cluster_is_removed(cluster: ApiServer, kubernetes_stack: Client) -> None:
    cluster.failing["/apis/batch/v1/namespaces/zenml/cronjobs"] = 403
    with pytest.raises(BadInput, match="403"):
        create()
    assert not schedules.all_schedules()


def test_unmanageable_schedules_are_one_line_errors(
    cluster: ApiServer, scheduled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="there is no schedule other; `--schedule-list`"):
        schedules.set_active("other", False)
    cluster.failing["/apis/batch"] = 403
    with pytest.raises(BadInput, match="403"):
        schedules.set_active(scheduled, False)
    with pytest.raises(BadInput, match="403"):
        schedules.delete(scheduled)
    assert [schedule.active for schedule in schedules.all_schedules()] == [True], "ZenML says what the cluster does"
    cluster.shutdown()
    cluster.server_close()
    monkeypatch.setattr(Retry, "sleep", lambda *_: pytest.fail("a command waits for a cluster that is away"))
    with pytest.raises(BadInput, match="cannot be reached"):
        schedules.delete(scheduled)
    with pytest.raises(BadInput, match="cannot be reached"):
        schedules.set_active(scheduled, False)


def test_an_orchestrator_that_cannot_schedule() -> None:
    with pytest.raises(BadInput, match="orchestrator default of stack default cannot run schedules"):
        schedules.require_scheduler()


def test_a_task_is_trained_on_a_schedule_too(kubernetes_stack: Client, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["task=examples.larger_number:PLUGIN", "task_settings={most: 20, pairs: 8}", "continue_from=production"]
    config = load_config(None, [*words, "validate_every=0"])
    docker = {"skip_build": True, "parent_image": "registry.example.com/agent:1"}
    config = config.model_copy(update={"settings": {"docker": docker}})
    options: dict[str, Any] = {"dry_run": False, "cache": True, "summary": None}
    run_task(config, "train", schedule="@daily", **options)
    (schedule,) = schedules.all_schedules()
    assert f'scheduled: {schedule.name} "@daily"' in capsys.readouterr().out
    snapshot = kubernetes_stack.list_snapshots(sort_by="desc:created", size=1, hydrate=True, named_only=False).items[0]
    model = snapshot.pipeline_configuration.model
    assert model is not None and (model.name, model.version) == ("larger-number-agent", None)
    steps = snapshot.step_configurations
    assert set(steps) == {
        *("setup_art_model", "find_start", "train_agent", "run_inference"),
        *("find_production", "ask_production", "compute_metrics"),
    }
    assert all(step.config.enable_cache is False for name, step in steps.items() if name != "setup_art_model")
    assert steps["find_production"].spec.upstream_steps == ["train_agent"]
    with pytest.raises(BadInput, match=f"{schedule.name} exists already"):
        run_task(config, "train", schedule="@daily", **options)
    with pytest.raises(BadInput, match="five fields are needed"):
        run_task(config, "train", schedule="daily", **options)
