"""Run a pipeline to its end; print the states of steps on other machines, and raise the reason of a failure in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from urllib3.exceptions import HTTPError
from zenml.client import Client
from zenml.exceptions import StackValidationError
from zenml.models import PipelineRunResponse, StepRunResponse
from zenml.orchestrators.exceptions import PipelineSubmissionError
from zenml.pipelines.pipeline_definition import Pipeline

from cluster.errors import RunFailed
from cluster.flavors import PENDING
from environment.errors import BadMail
from reports.console import say
from steps.background import called_every
from training.errors import BadInput

POLL_SECONDS = 3
REFUSALS = (PipelineSubmissionError, HTTPError)
"""What ZenML raises when a cluster does not accept a run, or does not answer."""


def run_pipeline(pipeline: Pipeline, arguments: dict[str, Any], **options: Any) -> PipelineRunResponse:
    """Run a pipeline and return the finished run. `options` are those of `with_options`. A step in this process raises its own error.

    Raises:
        BadInput: a step on another machine raised it, or the stack lacks what the run needs.
        RunFailed: a step on another machine failed in any other way.
    """
    name = f"{pipeline.name}-{datetime.now(UTC):%Y_%m_%d-%H_%M_%S_%f}"
    remote = Client().active_stack.orchestrator.config.is_remote
    try:
        with _steps_said(name) if remote else contextlib.nullcontext():
            run = pipeline.with_options(run_name=name, **options)(**arguments)
    except Exception as error:
        if remote and (failed := _failed_step(name)):
            raise _reason(failed) from None
        if remote and isinstance(error, RuntimeError):  # the pod that starts the steps failed first
            hint = "when its pods' logs miss the module cluster, the image lacks the project: see Images in docs/kubernetes.md"
            raise RunFailed(f"{' '.join(str(error).split())} ({hint})") from None
        if remote and isinstance(error, REFUSALS):
            raise RunFailed(f"the cluster did not start the run: {' '.join(str(error).split())}") from None
        if isinstance(error, StackValidationError):
            raise BadInput(" ".join(str(error).split())) from None
        raise
    assert run is not None, "only scheduled pipelines return nothing"
    run = Client().get_pipeline_run(run.id)
    if failed := _failed_step(name):  # a cluster may end the run without an error, for example for lack of a GPU
        raise _reason(failed)
    return run


def output(run: PipelineRunResponse, step: str, name: str) -> Any:
    """Return the artifact version that a step of a finished run stored under `name`."""
    return run.steps[step].outputs[name][0]


def say_if_cached(run: PipelineRunResponse, what: str) -> None:
    """Print that nothing ran, when every step of the run was cached."""
    if all(step.status.value == "cached" for step in run.steps.values()):
        say(f"{what}: unchanged, reused (--no-cache runs it again)")


@contextlib.contextmanager
def _steps_said(name: str) -> Iterator[None]:
    """Print each change of a step's state during the context."""
    said: dict[str, str] = {}

    def look() -> None:
        # The run appears after its submission, and a server may be away for a moment; the next look shows everything.
        with contextlib.suppress(Exception):
            for step_name, step in Client().get_pipeline_run(name).steps.items():
                state = step.status.value
                if state == "running" and (why := step.run_metadata.get(PENDING)):
                    state = f"pending: {why}"
                if said.get(step_name) != state:
                    said[step_name] = state
                    say(f"  {step_name}: {state}", quiet=True)

    try:
        with called_every(POLL_SECONDS, look, thread="steps-said"):
            yield
    finally:
        look()


def _failed_step(name: str) -> StepRunResponse | None:
    """Return the failed step, or in a failed run without one the first unfinished step."""
    with contextlib.suppress(KeyError):
        run = Client().get_pipeline_run(name)
        steps = list(run.steps.values())
        failed = [step for step in steps if step.status.is_failed]
        if run.status.is_failed:
            failed += [step for step in steps if not step.status.is_finished]
        if failed:
            return failed[0]
    return None


def _reason(step: StepRunResponse) -> Exception:
    """Build an exception from what ZenML keeps of the step's error, or from why its pod ended."""
    info = step.exception_info
    if info and info.source and info.source.rpartition(".")[2] in (BadInput.__name__, BadMail.__name__):
        return BadInput(info.message)
    if info:
        reason = f"{(info.source or '').rpartition('.')[2]}: {info.message}"
    else:
        reason = str(step.run_metadata.get(PENDING) or "its pod did not start, or ended without an error message")
    return RunFailed(f"step {step.name}: {' '.join(reason.split())}; log: run {step.pipeline_run_id} in the dashboard")
