"""Running a pipeline to its end; what happens on other machines meanwhile, and what failed there, in lines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from zenml.client import Client
from zenml.models import PipelineRunResponse, StepRunResponse
from zenml.pipelines.pipeline_definition import Pipeline

from cluster.errors import RunFailed
from cluster.flavors import PENDING
from reports.console import say
from training.errors import BadInput

POLL_SECONDS = 3


def run_pipeline(pipeline: Pipeline, arguments: dict[str, Any], **options: Any) -> PipelineRunResponse:
    """The finished run. `options` are those of `with_options`. A step that fails in this process raises what it raised.

    Raises:
        BadInput: a step on another machine raised it.
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
        if remote and isinstance(error, RuntimeError):  # the pod that starts the steps did not get that far
            hint = "when its pods' logs miss the module cluster, the image lacks the project: see Images in docs/kubernetes.md"
            raise RunFailed(f"{' '.join(str(error).split())} ({hint})") from None
        raise
    assert run is not None, "only scheduled pipelines return nothing"
    run = Client().get_pipeline_run(run.id)
    if failed := _failed_step(name):  # without a GPU, say, a cluster may end the run and not raise
        raise _reason(failed)
    return run


@contextlib.contextmanager
def _steps_said(name: str) -> Iterator[None]:
    """Says each change of a step's state while the context lasts."""
    over, said = threading.Event(), {}

    def look() -> None:
        for step_name, step in Client().get_pipeline_run(name).steps.items():
            state = step.status.value
            if state == "running" and (why := step.run_metadata.get(PENDING)):
                state = f"pending: {why}"
            if said.get(step_name) != state:
                said[step_name] = state
                say(f"  {step_name}: {state}", quiet=True)

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            # The run appears only when it was submitted, and a server may be away for a moment: the next look shows all.
            with contextlib.suppress(Exception):
                look()

    thread = threading.Thread(target=watch, name="steps-said", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(Exception):
            look()


def _failed_step(name: str) -> StepRunResponse | None:
    """The step that failed, or, in a run that failed without one, the step that it never got beyond."""
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
    """The exception that the step raised, as far as ZenML keeps it, or why its pod ended."""
    info = step.exception_info
    if info and info.source and info.source.rpartition(".")[2] == BadInput.__name__:
        return BadInput(info.message)
    if info:
        reason = f"{(info.source or '').rpartition('.')[2]}: {info.message}"
    else:
        reason = str(step.run_metadata.get(PENDING) or "its pod did not start, or ended without a word")
    return RunFailed(f"step {step.name}: {' '.join(reason.split())}; log: run {step.pipeline_run_id} in the dashboard")
