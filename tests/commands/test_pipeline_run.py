"""Output about a run on other machines: its steps, what they wait for, and a one-line reason of a failure."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError
from zenml.enums import ExecutionStatus
from zenml.exceptions import StackValidationError
from zenml.orchestrators.exceptions import PipelineSubmissionError

from cluster.errors import RunFailed
from cluster.flavors import PENDING
from commands import pipeline_run
from training.errors import BadInput

pytestmark = pytest.mark.service


class Remote:
    """A pipeline whose run ends as told, on an orchestrator that is elsewhere."""

    name = "training_pipeline"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: dict[str, Any] = {}
        self.status = ExecutionStatus.COMPLETED
        self.raised: Exception | None = None
        orchestrator = SimpleNamespace(config=SimpleNamespace(is_remote=True))
        client = SimpleNamespace(
            active_stack=SimpleNamespace(orchestrator=orchestrator), get_pipeline_run=lambda _: self
        )
        monkeypatch.setattr(pipeline_run, "Client", lambda: client)
        monkeypatch.setattr(pipeline_run, "POLL_SECONDS", 0.01)

    id = "r"

    def step(self, status: str, *, pending: str = "", source: str = "", message: str = "") -> None:
        info = SimpleNamespace(source=source, message=message) if source else None
        self.steps["train_agent"] = SimpleNamespace(
            name="train_agent",
            status=ExecutionStatus(status),
            run_metadata={PENDING: pending},
            exception_info=info,
            pipeline_run_id="r",
        )

    def with_options(self, run_name: str) -> Remote:
        assert run_name.startswith("training_pipeline-")
        return self

    def __call__(self) -> Remote:
        time.sleep(0.05)
        if self.raised:
            raise self.raised
        return self


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Remote:
    return Remote(monkeypatch)


def test_a_pod_that_waits_is_a_line(remote: Remote, capsys: pytest.CaptureFixture[str]) -> None:
    remote.step("running", pending="Insufficient nvidia.com/gpu")
    assert pipeline_run.run_pipeline(remote, {}) is remote
    assert capsys.readouterr().out.splitlines() == ["  train_agent: pending: Insufficient nvidia.com/gpu"]


@pytest.mark.parametrize(
    ("step", "kind", "line"),
    [
        ({"source": "training.errors.BadInput", "message": "no mail"}, BadInput, "no mail"),
        ({"source": "environment.errors.BadMail", "message": "no mail"}, BadInput, "no mail"),
        (
            {"source": "builtins.ValueError", "message": "two\nlines"},
            RunFailed,
            "step train_agent: ValueError: two lines; log: run r in the dashboard",
        ),
        ({"pending": "OOMKilled"}, RunFailed, "step train_agent: OOMKilled; log: run r in the dashboard"),
        (
            {},
            RunFailed,
            "step train_agent: its pod did not start, or ended without an error message; log: run r in the dashboard",
        ),
    ],
)
@pytest.mark.parametrize("raises", [True, False])
def test_a_failed_step_is_one_line(remote: Remote, step: dict[str, str], kind: type, line: str, raises: bool) -> None:
    remote.step("failed", **step)
    remote.status = ExecutionStatus.FAILED
    remote.raised = RuntimeError("Job failed") if raises else None
    with pytest.raises(kind) as caught:
        pipeline_run.run_pipeline(remote, {})
    assert str(caught.value) == line


def test_a_run_that_failed_while_a_step_was_retried(remote: Remote) -> None:
    remote.step("retrying")
    remote.status = ExecutionStatus.FAILED
    with pytest.raises(RunFailed, match="step train_agent: its pod did not start"):
        pipeline_run.run_pipeline(remote, {})


def test_a_run_that_never_began(remote: Remote) -> None:
    remote.raised = RuntimeError("Job `a` failed:\nErrImagePull")
    with pytest.raises(RunFailed, match="^Job `a` failed: ErrImagePull .*the image lacks the project"):
        pipeline_run.run_pipeline(remote, {})


@pytest.mark.parametrize(
    ("raised", "kind", "line"),
    [
        (
            PipelineSubmissionError("Failed to submit: (403)\nForbidden"),
            RunFailed,
            "the cluster did not start the run: Failed to submit: (403) Forbidden",
        ),
        (
            MaxRetryError(HTTPConnectionPool("cluster"), "/apis", None),
            RunFailed,
            "the cluster did not start the run: HTTPConnectionPool(host='cluster', port=None): Max retries exceeded with url: /apis "
            "(Caused by None)",
        ),
        (StackValidationError("no step operator\nnamed typo"), BadInput, "no step operator named typo"),
    ],
)
def test_a_run_that_is_not_accepted_is_one_line(remote: Remote, raised: Exception, kind: type, line: str) -> None:
    remote.raised = raised
    with pytest.raises(kind) as caught:
        pipeline_run.run_pipeline(remote, {})
    assert str(caught.value) == line


def test_other_errors_are_not_changed(remote: Remote) -> None:
    remote.raised = KeyError("ours")
    with pytest.raises(KeyError, match="ours"):
        pipeline_run.run_pipeline(remote, {})
