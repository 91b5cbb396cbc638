"""A learn loop whose pod is lost goes on in another one, from what it published."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenml.artifact_stores.base_artifact_store import BaseArtifactStore
from zenml.client import Client

from steps.training import published_run
from steps.training.published_run import LOOPS_FOLDER, open_console
from tasks.outreach import loop as loop_module
from tasks.outreach.loop import LearnLoop
from tests.fakes.outreach_model import OutreachModel, without_backend
from tests.tasks.outreach.killed_loop import RULES, RUN, loop_in
from tests.training.toy_run import CountingBackend, CountingModel
from training.record.history import StepRecord

pytestmark = pytest.mark.service


class PodLost(BaseException):
    pass


class Backend(CountingBackend):
    """Its checkpoints have a file, since an artifact store has no empty folders."""

    def __init__(self, model: CountingModel) -> None:
        super().__init__(model)
        empty = model.new_checkpoint

        def new_checkpoint() -> None:
            empty()
            (model.checkpoints / f"{model.step():04d}" / "adapter").write_text("")

        model.new_checkpoint = new_checkpoint  # type: ignore[method-assign]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseArtifactStore]:
    """The local store, taken for a remote one."""
    store = Client().active_stack.artifact_store
    monkeypatch.setattr(type(store.config), "is_local", False)
    yield store
    shutil.rmtree(Path(store.path) / LOOPS_FOLDER, ignore_errors=True)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[OutreachModel]:
    with OutreachModel() as server:
        monkeypatch.setattr(loop_module, "run_training", without_backend(server.url, Backend))
        yield server


def run_in(folder: Path, lost_after: int | None = None) -> LearnLoop:
    console = open_console(RULES.max_steps, folder / RUN, LOOPS_FOLDER)
    loop = loop_in(folder, None)
    with console, loop._outbox:
        loop._progress = console

        def step(row: StepRecord) -> None:
            real(row)
            if row.step == lost_after:
                raise PodLost

        real = loop.step
        loop.step = step  # type: ignore[method-assign]
        asyncio.run(loop.run(base_model="none", settings=RULES, max_tokens=96))
    return loop


@pytest.mark.usefixtures("store", "model")
def test_another_pod_goes_on_after_the_last_finished_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(published_run, "say", said.append)
    with pytest.raises(PodLost):
        run_in(tmp_path / "first", lost_after=2)
    first = loop_in(tmp_path / "first", None)
    sent = {iteration: [email.message_id for email in first.emails(iteration)] for iteration in (1, 2)}
    again = run_in(tmp_path / "second")
    assert said == ["resuming the run from the artifact store: 3 finished steps"]
    assert {iteration: [email.message_id for email in again.emails(iteration)] for iteration in (1, 2)} == sent
    assert [metrics.iteration for metrics in again.metrics()] == [0, 1, 2, 3]
    assert again.scores_after(2) == first.scores_after(2)
