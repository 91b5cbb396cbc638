"""Kills, stop rules, errors and time limits while rollouts are gathered ahead."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.training.scripted_gathering import (
    Scripted,
    ahead,
    comes,
    first_update_after,
    questions,
    run,
    version,
)
from tests.training.toy_run import Killed, RecordedProgress
from training.errors import BadInput
from training.record.history import HISTORY_FILE, read_history
from training.task import Policy, RolloutError


@pytest.mark.parametrize("bound", [1, 2])
def test_a_killed_run_repeats_rollouts_that_were_only_gathered_ahead(bound: int, tmp_path: Path) -> None:
    rules = ahead(bound, max_steps=4, validate_every=2, validation_questions=2)
    whole = questions(tmp_path / "plain", max_steps=4, validate_every=2, validation_questions=2)
    for number in range(1, 4 * 12 + 6, 5):
        folder = tmp_path / str(number)
        task = Scripted()
        task.die = lambda policy, count, at=number: count == at
        with pytest.raises(Killed):
            run(folder, rules, task)
        before = read_history(folder / "tests" / "models" / "toy" / HISTORY_FILE)
        again = Scripted()
        finished, backend = run(folder, rules, again)
        done = before[-1].step if before else 0
        assert finished.history[: len(before)] == before and [row.step for row in finished.history] == list(range(5))
        assert backend.trained == whole[done:], f"killed at rollout {number}"
        # What was sampled before the kill does not count: all of it is sampled anew, from policies that are there.
        played = Counter(event for event in again.events if event.startswith("play"))
        assert played == {f"play {question}": 4 for of_step in whole[done:] for question in of_step}
        assert all(row.off_policy_steps <= bound for row in finished.history)
        assert finished.history[done + 1].off_policy_steps == 0, "the first after a start has nothing ahead of it"


@pytest.mark.parametrize(
    "rules", [{"stop_tokens": 300}, {"validate_every": 1, "stop_target": 0.6, "validation_questions": 5}]
)
def test_a_stop_rule_cancels_rollouts_gathered_ahead(rules: dict[str, Any], tmp_path: Path) -> None:
    expected, plain = run(tmp_path / "plain", ahead(0, **rules), Scripted())
    cancelled = []
    last = set(plain.trained[-1])

    async def hang(_: Policy, scenario: int) -> None:
        if not any(scenario in asked for asked in plain.trained):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(scenario)
                raise

    recorded = RecordedProgress()
    finished, backend = run(tmp_path / "ahead", ahead(2, **rules), Scripted(play=hang), progress=recorded)
    assert finished.stopped == expected.stopped
    assert len(finished.history) == len(expected.history) and backend.trained == plain.trained
    assert cancelled and not last & set(cancelled)
    assert len(recorded.rows) == len(finished.history) and recorded.warnings == []


def test_a_checkpoint_that_is_sampled_from_is_not_deleted_until_then(tmp_path: Path) -> None:
    asked = questions(tmp_path / "plain", max_steps=7)
    slow = asked[5][0]
    released = asyncio.Event()
    there: list[bool] = []
    folder = tmp_path / "ahead"

    async def play(policy: Policy, scenario: int) -> None:
        if scenario == slow:
            await comes(released)
            there.append((folder / "tests/models/toy/checkpoints" / f"{version(policy):04d}").is_dir())

    async def update(number: int) -> None:
        await asyncio.sleep(0)
        if number == 6:  # of step 5: four updates after the group of step 6 began
            released.set()

    task = Scripted(play=play)
    finished, _ = run(folder, ahead(3, max_steps=7), task, update)
    assert task.versions[slow] == {3} and there == [True] * 4
    assert finished.history[6].off_policy_steps == 3
    assert sorted(path.name for path in finished.checkpoint.parent.iterdir()) == ["0001", "0007", "0008"]


def test_errors_of_a_step_gathered_ahead_are_reported_at_their_step_and_finished_work_is_kept(tmp_path: Path) -> None:
    asked = questions(tmp_path / "plain", max_steps=3)
    refused = asyncio.Event()

    async def judge(question: int) -> None:
        if question in asked[1]:
            refused.set()
            raise BadInput("judge refuses the key")

    with pytest.raises(BadInput, match="^judge refuses the key$"):
        run(tmp_path / "ahead", ahead(1, max_steps=3), Scripted(judge=judge), first_update_after(refused))
    assert [row.step for row in read_history(tmp_path / "ahead" / "tests/models/toy" / HISTORY_FILE)] == [0, 1]
    finished, _ = run(tmp_path / "ahead", ahead(1, max_steps=3), Scripted())
    assert finished.resumed_from == 1 and len(finished.history) == 4


def test_a_warning_is_in_the_row_of_the_step_whose_rollouts_failed(tmp_path: Path) -> None:
    asked = questions(tmp_path / "plain", max_steps=3)
    failed = asyncio.Event()

    async def play(_: Policy, scenario: int) -> None:
        if scenario == asked[1][0]:
            failed.set()
            raise OSError("the connection was reset")

    recorded = RecordedProgress()
    run(tmp_path / "ahead", ahead(1, max_steps=3), Scripted(play=play), first_update_after(failed), recorded)
    assert [len(row.warnings) for row in recorded.rows] == [0, 0, 1, 0]
    assert recorded.rows[2].warnings[0].startswith("step 2: 4 rollouts failed (4 OSError: the connection")
    assert [(row.rollout_errors, row.groups_dropped) for row in recorded.rows] == [(0, 0), (0, 0), (4, 1), (0, 0)]


@pytest.mark.parametrize(("broken", "ends"), [(1, False), (2, True)])
def test_a_step_whose_rollouts_mostly_fail_ends_the_run(broken: int, ends: bool, tmp_path: Path) -> None:
    asked = questions(tmp_path / "plain", max_steps=2)

    async def play(_: Policy, scenario: int) -> None:
        if scenario in asked[1][:broken]:
            raise RolloutError("the judge gave no verdict")

    if ends:
        recorded = (
            r"^step 2: 8 rollouts failed \(8 RolloutError: the judge .* more than 50% of 12; the same command resumes"
        )
        with pytest.raises(BadInput, match=recorded):
            run(tmp_path / "run", ahead(0, max_steps=2), Scripted(play=play))
    else:
        run(tmp_path / "run", ahead(0, max_steps=2), Scripted(play=play))
    rows = read_history(tmp_path / "run" / "tests/models/toy" / HISTORY_FILE)
    assert [row.step for row in rows] == ([0, 1] if ends else [0, 1, 2])


@pytest.mark.parametrize(("lost", "trained"), [(4, 3), (5, 2)])
def test_a_group_that_lost_more_than_half_of_its_rollouts_is_not_learnt_from(
    lost: int, trained: int, tmp_path: Path
) -> None:
    asked = questions(tmp_path / "plain", max_steps=1, rollouts_per_group=8)
    rollouts: dict[Any, int] = {}

    async def play(_: Policy, scenario: int) -> None:
        if scenario == asked[0][0] and rollouts.setdefault(asyncio.current_task(), len(rollouts)) < lost:
            raise OSError("the connection was reset")

    finished, backend = run(tmp_path / "run", ahead(0, max_steps=1, rollouts_per_group=8), Scripted(play=play))
    row = finished.history[1]
    assert (row.rollout_errors, row.groups_dropped) == (lost, 3 - trained)
    assert len(backend.trained[0]) == trained and (asked[0][0] in backend.trained[0]) == (trained == 3)


def test_the_time_that_an_update_takes_is_not_the_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.loop.gathering.STEP_TIMEOUT", 3.0)
    asked = questions(tmp_path / "plain", max_steps=2)
    updated = asyncio.Event()

    async def play(_: Policy, scenario: int) -> None:
        if scenario in asked[1]:
            await updated.wait()

    async def update(number: int) -> None:
        if number == 2:
            await asyncio.sleep(4.0)
            updated.set()

    finished, _ = run(tmp_path / "ahead", ahead(1, max_steps=2), Scripted(play=play), update)
    assert finished.history[2].rollout_errors == 0 and finished.history[2].off_policy_steps == 1
    assert finished.history[2].rollout_seconds > 3.5 > finished.history[2].seconds

    async def hang(_: Policy, scenario: int) -> None:
        if scenario in asked[1]:
            await asyncio.Event().wait()

    with pytest.raises(BadInput, match=r"step 2: 12 rollouts failed \(12 TimeoutError\), none finished"):
        run(tmp_path / "hangs", ahead(1, max_steps=2), Scripted(play=hang), update)
