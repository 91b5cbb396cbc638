"""SIGKILL at every point of an iteration: the same command goes on, and nothing is lost or done twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.outreach import loop as loop_module
from tasks.outreach.events import EventStore
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.task import OutreachTask
from tasks.outreach.webhook import SECRET
from tests import children
from tests.fakes.outreach_model import OutreachModel
from tests.fakes.webhook import SECRET_VALUE, Receiver
from tests.tasks.outreach.killed_loop import POINTS, loop_in, run_loop, run_until_killed

pytestmark = pytest.mark.service


@pytest.fixture
def model() -> Iterator[OutreachModel]:
    with OutreachModel() as server:
        yield server


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv(SECRET, SECRET_VALUE)
    with Receiver() as server:
        yield server


def test_an_iteration_whose_checkpoint_is_damaged_runs_again_from_the_scores_before_it(
    model: OutreachModel, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "run_training", loop_module.run_training)  # run_loop replaces it
    loop = run_loop(tmp_path, model.url, receiver.url)
    last = loop._finished_rows()[-1]
    [checkpoint] = loop.folder.rglob(f"checkpoints/{last.checkpoint_step:04d}")
    (checkpoint / "torn").write_text("")
    assert [row.step for row in loop._finished_rows()] == [0, 1, 2]
    seen: list[NodeScores] = []

    async def rollout(task: OutreachTask, *arguments: Any) -> Any:
        seen.append(task.scores)
        return await real(task, *arguments)

    real = OutreachTask.rollout
    monkeypatch.setattr(OutreachTask, "rollout", rollout)
    kept, announced = ([email.message_id for email in loop.emails(iteration)] for iteration in (2, 3))
    again = run_loop(tmp_path, model.url, receiver.url)
    assert [row.step for row in again._finished_rows()] == [0, 1, 2, 3]
    assert seen[:8] == [again.scores_after(2)] * 8
    assert [email.message_id for email in again.emails(2)] == kept

    told = {notice["id"]: [email["message_id"] for email in notice["emails"]] for notice, _ in receiver.received}
    new = [email.message_id for email in again.emails(3)]
    assert list(told) == [*(f"run-{iteration:04d}" for iteration in range(4)), "run-0003-2"]
    assert (told["run-0003"], told["run-0003-2"]) == (announced, new) and not set(announced) & set(new)
    assert all(loop._store.record(message, "replied") for message in announced + new)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_loop_goes_on(model: OutreachModel, receiver: Receiver, tmp_path: Path, point: str) -> None:
    arguments = (tmp_path, model.url, receiver.url, SECRET_VALUE, point)
    assert children.exit_code(run_until_killed, *arguments) == -signal.SIGKILL
    killed = loop_in(tmp_path, None)
    kept = [[email.message_id for email in killed.emails(1)], killed.scores_after(1)]
    store = EventStore(tmp_path / "feedback.sqlite")
    answered = [email.message_id for email in killed.emails(1)] * 2
    assert sum(store.record(message, "replied") for message in answered) == 8

    with pytest.MonkeyPatch.context() as restored:
        restored.setattr(loop_module, "run_training", loop_module.run_training)  # run_loop replaces it
        loop = run_loop(tmp_path, model.url, receiver.url)
    assert [metrics.iteration for metrics in loop.metrics()] == [0, 1, 2, 3]
    assert [row.step for row in loop._finished_rows()] == [0, 1, 2, 3]
    assert [[email.message_id for email in loop.emails(1)], loop.scores_after(1)] == kept
    with store._connected() as connection:
        counts = connection.execute("SELECT iteration, count(*) FROM messages GROUP BY iteration").fetchall()
    assert counts == [(1, 8), (2, 8), (3, 8)]
    assert not any(store.record(message, "replied") for message in answered)
    assert sum(replies for _, _, replies in store.rates_by_fact().values()) == 8

    ids = [notice["id"] for notice, genuine in receiver.received if genuine]
    assert loop._outbox.undelivered() == []
    assert list(dict.fromkeys(ids)) == [f"run-{iteration:04d}" for iteration in range(4)]
    assert len(ids) <= 5  # the notice that was being delivered may arrive again
    final = {email.message_id for email in loop.emails(3)}
    told = receiver.received[-1][0]
    assert told["node_scores"] == loop.scores_after(3).scores and told["metrics"]["emails"] == len(final)
