"""Rollouts in Weave, whose trace server and W&B account are stand-ins on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import art
import pytest

from tasks.outreach.loop import LearnLoop
from tests.fakes.server import Answer, FakeServer, Request
from tests.training import toy_run
from tests.training.toy_run import RecordedProgress, ToyTask, settings
from training.errors import BadInput
from training.record.experiment import Experiment
from training.record.progress import ForwardedProgress, Progress
from training.record.traces import _Traced, traced
from training.record.wandb_log import _WandbLog

EXPERIMENT = Experiment(
    name="first",
    run="r0123456789",
    config={"max_steps": 1},
    git_revision="abc",
    base_model="owner/model",
    base_model_checksum="0" * 64,
    created=datetime(2026, 11, 23, tzinfo=UTC),
)


class TraceServer(FakeServer):
    """Keeps finished calls and feedback."""

    protocol = "HTTP/1.1"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self.feedback: list[dict[str, Any]] = []
        self.refuses = False

    def respond(self, request: Request) -> Answer:
        if request.method == "GET":
            return {"min_required_weave_python_version": "0.0.1", "trace_server_version": "1.0"}
        if self.refuses:
            return 403, {"errors": [{"message": "permission denied"}]}
        if request.path == "/graphql":
            viewer = {"id": "v", "entity": "team", "username": "someone", "defaultEntity": {"name": "team"}}
            return {"data": {"viewer": viewer, "project": {"name": "mail"}}}
        if request.path.endswith("/calls/complete"):
            self.calls += request.json()["batch"]
            return {"res": []}
        if request.path.startswith("/feedback/batch"):
            batch = request.json()["batch"]
            self.feedback += batch
            known = {"created_at": "2026-11-23T00:00:00Z", "wb_user_id": "u", "payload": {}}
            return {"res": [{"id": entry["id"], **known} for entry in batch]}
        return {"digest": "d" * 43}  # objects and files, such as the source of an op


@pytest.fixture
def weave_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceServer]:
    with TraceServer() as server:
        for name, value in {
            **{"WANDB_BASE_URL": server.url, "WF_TRACE_SERVER_URL": server.url, "WANDB_API_KEY": "k" * 40},
            **{"WEAVE_PROJECT": "team/mail", "WEAVE_DISABLED": "false"},
        }.items():
            monkeypatch.setenv(name, value)
        yield server


class Talking(ToyTask):
    async def rollout(self, policy: Any, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        trajectory.messages_and_choices = [
            {"role": "user", "content": f"number {scenario}?"},
            {"role": "assistant", "content": "search"},
            {"role": "tool", "tool_call_id": "c", "content": "a mail"},
            {"role": "assistant", "content": "the answer"},
        ]
        trajectory.metadata |= {"question": f"number {scenario}?", "answer": "the answer"}
        trajectory.log("judge: so good")
        return trajectory


def train(folder: Path, progress: Progress) -> None:
    rules = settings(max_steps=1, groups_per_step=1, validate_every=1, validation_questions=2)
    toy_run.train(folder, rules, Talking(), progress)


def test_every_rollout_is_a_trace_with_its_turns_and_scores(weave_server: TraceServer, tmp_path: Path) -> None:
    recorded = RecordedProgress()
    with traced(recorded, EXPERIMENT) as progress:
        train(tmp_path, progress)
    assert len(recorded.rows) == 2
    by_op: dict[str, list[dict[str, Any]]] = {}
    for call in weave_server.calls:
        by_op.setdefault(call["op_name"].split("/")[-1].split(":")[0], []).append(call)
    rollouts = by_op["rollout"]
    assert [call["inputs"]["split"] for call in rollouts].count("train") == 4 and len(rollouts) == 8
    assert len(by_op["reply"]) == 16 and len(by_op["tool"]) == 8
    assert {call["parent_id"] for call in by_op["reply"]} == {call["id"] for call in rollouts}
    assert rollouts[0]["output"] == {"answer": "the answer"} and rollouts[0]["inputs"]["question"].startswith("number")
    assert rollouts[0]["attributes"]["config_hash"] == EXPERIMENT.config_hash
    scored = {entry["weave_ref"].rpartition("/")[2]: entry["payload"] for entry in weave_server.feedback}
    assert set(scored) == {call["id"] for call in rollouts}
    assert {"reward", "correct"} <= set(next(iter(scored.values()))) and next(iter(scored.values()))[
        "judge"
    ] == "so good"


def test_without_a_project_nothing_is_traced_and_a_refusal_is_said(
    weave_server: TraceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    weave_server.refuses = True
    with (
        pytest.raises(BadInput, match="WEAVE_PROJECT=team/mail: Weave cannot be used"),
        traced(RecordedProgress(), EXPERIMENT),
    ):
        pass
    monkeypatch.delenv("WEAVE_PROJECT")
    recorded = RecordedProgress()
    with traced(recorded, EXPERIMENT) as progress:
        assert progress is recorded
    assert weave_server.calls == []


class BrokenClient:
    """A Weave client whose `breaks` fails from some time after `weave.init` on."""

    def __init__(self, breaks: str) -> None:
        self.breaks = breaks
        self.failed = 0
        self.feedback = self

    def create_call(self, *_: Any, **__: Any) -> BrokenClient:
        return self._done("create_call")

    def finish_call(self, *_: Any, **__: Any) -> BrokenClient:
        return self._done("finish_call")

    def add(self, *_: Any) -> BrokenClient:
        return self._done("add")

    def _done(self, name: str) -> BrokenClient:
        if name == self.breaks:
            self.failed += 1
            raise ConnectionError("the trace server\nis gone")
        return self


@pytest.mark.parametrize("breaks", ["create_call", "finish_call", "add"])
def test_a_trace_server_that_breaks_is_one_warning_and_the_run_goes_on(breaks: str, tmp_path: Path) -> None:
    recorded, client = RecordedProgress(), BrokenClient(breaks)
    train(tmp_path, _Traced(recorded, client, EXPERIMENT))
    assert len(recorded.rows) == 2 and client.failed == 3, "one attempt per step and validation"
    assert [line for line in recorded.warnings if "Weave" in line] == [
        "Weave fails, so traces are missing: the trace server is gone; the run goes on"
    ]


def test_the_end_of_weave_ends_no_run(weave_server: TraceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import weave

    def finish() -> None:
        raise ConnectionError("the trace server is gone")

    recorded, real_finish = RecordedProgress(), weave.finish
    monkeypatch.setattr(weave, "finish", finish)
    with traced(recorded, EXPERIMENT):
        pass
    real_finish()
    assert recorded.warnings == ["Weave fails, so traces are missing: the trace server is gone; the run goes on"]


def test_who_listens_in_keeps_nothing_from_the_console() -> None:
    """A method that the forwarding class lacks is that of `Progress`, which tells nobody."""
    methods = {name for name in vars(Progress) if not name.startswith("_")}
    assert methods <= vars(ForwardedProgress).keys()
    assert all(issubclass(wrapper, ForwardedProgress) for wrapper in (_Traced, _WandbLog, LearnLoop))
