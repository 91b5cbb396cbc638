"""What is gathered ahead: that it overlaps with updates, its bound, and what the run reports of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import art
import pytest

from tests.training.scripted_gathering import (
    WAITS,
    Scripted,
    ahead,
    comes,
    questions,
    run,
)
from tests.training.toy_run import RecordedProgress
from training.loop.slots import Slots
from training.scoring.ruler import JudgeUse
from training.task import Policy


def test_without_it_a_step_is_gathered_scored_and_updated_on_before_the_next_begins(tmp_path: Path) -> None:
    task = Scripted()
    finished, backend = run(tmp_path, ahead(0, max_steps=3, validate_every=1, validation_questions=2), task)
    stages = [event.split()[0] for event in task.events if event.startswith(("play", "update"))]
    assert [stage for stage, before in pairwise([*stages, None]) if stage != before] == [
        "play",
        "update",
        "updated",
    ] * 3
    assert len(backend.trained) == 3
    for step, asked in enumerate(backend.trained, 1):
        assert all(task.versions[question] == {step} for question in asked)
    assert [row.off_policy_steps for row in finished.history] == [0] * 4


def test_rollouts_and_scores_of_the_next_step_come_during_the_update_of_this_one(tmp_path: Path) -> None:
    asked = questions(tmp_path / "plain", max_steps=3)
    scored: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
    updating: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
    step_of = {question: step for step, of_step in enumerate(asked, 1) for question in of_step}

    async def judge(question: int) -> None:
        """Waits for the update of the step before to begin: a slow judge."""
        if step_of[question] > 1:
            await comes(updating[step_of[question] - 1])
        scored[step_of[question]].set()

    async def update(number: int) -> None:
        step = number - 1
        updating[step].set()
        if step < 3:
            await comes(scored[step + 1])

    task = Scripted(judge=judge)
    finished, backend = run(tmp_path / "ahead", ahead(1, max_steps=3), task, update)
    assert backend.trained == asked
    for step in (1, 2):
        begun, ended = task.events.index(f"update to @{step + 1}"), task.events.index(f"updated to @{step + 1}")
        assert any(event == f"score {question}" for question in asked[step] for event in task.events[begun:ended])
    assert [row.off_policy_steps for row in finished.history] == [0, 0, 1, 1]
    assert [row.groups_trained for row in finished.history[1:]] == [3, 3, 3]


@pytest.mark.parametrize("bound", [0, 1, 2, 3])
@pytest.mark.parametrize("slots", [2, 24])
@pytest.mark.parametrize("seed", range(3))
def test_no_group_is_older_than_the_bound_and_all_of_it_is_of_one_policy(
    bound: int, slots: int, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)

    async def while_others_go_on(*_: Any) -> None:
        for _ in range(rng.randrange(40)):
            await asyncio.sleep(0)

    rules = {"max_steps": 7, "max_concurrent": slots, "validate_every": 2, "validation_questions": 3}
    task = Scripted(play=while_others_go_on, judge=while_others_go_on)
    finished, backend = run(tmp_path / "run", ahead(bound, **rules), task, while_others_go_on)
    assert backend.trained == questions(tmp_path / "plain", **rules)
    ages = [0]
    for step, asked in enumerate(backend.trained, 1):
        # Step s updates checkpoint s, the warm start's being the first.
        assert all(len(task.versions[question]) == 1 for question in asked)
        ages.append(max(step - min(task.versions[question]) for question in asked))
    assert [row.off_policy_steps for row in finished.history] == ages and max(ages) <= bound
    if slots == 24:
        assert max(ages) == bound
    validated = [event for event in task.events if event.startswith("validate")]
    assert Counter(validated) == {f"validate @{step + 1}": 3 for step in (0, 2, 4, 6, 7)}


def test_few_slots_go_to_the_earlier_step_and_a_group_to_the_policy_that_is_the_newest_when_it_begins(
    tmp_path: Path,
) -> None:
    async def briefly(*_: Any) -> None:
        await asyncio.sleep(0)

    task = Scripted(play=briefly)
    _, backend = run(tmp_path, ahead(1, max_steps=3, max_concurrent=1), task, briefly)
    played = [int(event.split()[1]) for event in task.events if event.startswith("play")]
    assert played == [question for asked in backend.trained for question in asked for _ in range(4)]
    assert [task.versions[question] for question in backend.trained[1]] == [{1}, {2}, {2}]


def test_a_validation_does_not_wait_for_rollouts_gathered_ahead(tmp_path: Path) -> None:
    rules = {"max_steps": 2, "max_concurrent": 2, "validate_every": 1, "validation_questions": 5}
    asked = questions(tmp_path / "plain", **rules)
    validated = asyncio.Event()

    async def play(_: Policy, scenario: int) -> None:
        if scenario in asked[1]:
            await comes(validated)

    class Tells(RecordedProgress):
        def step(self, row: Any) -> None:
            super().step(row)
            if row.step == 1:
                validated.set()

    recorded = Tells()
    run(tmp_path / "ahead", ahead(1, **rules), Scripted(play=play), progress=recorded)
    assert [row.validation_errors for row in recorded.rows] == [0, 0, 0] and recorded.rows[2].off_policy_steps == 1


def test_the_judges_cost_is_in_the_row_of_the_step_that_it_was_for(tmp_path: Path) -> None:
    class Judged(Scripted):
        async def score(self, group: art.TrajectoryGroup) -> tuple[art.TrajectoryGroup, JudgeUse]:
            price = float(group.trajectories[0].metadata["scenario_id"])
            return group, JudgeUse(requests=1, seconds=1.0, cost=price)

    async def slowly(_: int) -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    recorded = RecordedProgress()
    finished, backend = run(tmp_path, ahead(2, stop_tokens=300), Judged(), slowly, recorded)
    for row, asked in zip(finished.history[1:], backend.trained, strict=True):
        assert (row.judge_requests, row.judge_cost) == (3, sum(asked))
    assert len(recorded.warnings) == 1 and "6 requests to the judge" in recorded.warnings[0]
    assert "that no step has used" in recorded.warnings[0]


def test_each_bar_of_the_progress_is_filled_by_its_own_stage(tmp_path: Path) -> None:
    async def briefly(*_: Any) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    bars = RecordedProgress()
    run(
        tmp_path, ahead(2, max_steps=4, validate_every=2, validation_questions=4), Scripted(play=briefly), briefly, bars
    )
    assert [name for name, _, _ in bars.stages if "rollouts" in name] == [
        f"step {step}: rollouts" for step in (1, 2, 3, 4)
    ]
    assert all(done == total for name, total, done in bars.stages if not name.startswith("warm start")), bars.stages


def test_slots_go_by_turn_then_by_arrival_and_a_cancelled_one_is_given_on() -> None:
    order: list[str] = []

    async def take(slots: Slots, name: str, turn: int, leave: asyncio.Event) -> None:
        async with slots.one(turn):
            order.append(name)
            await leave.wait()

    async def scenario() -> None:
        slots, leave, stay = Slots(1), asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(take(slots, "first", 9, leave))
        await asyncio.sleep(0)
        named: list[tuple[str, int, Callable[[], asyncio.Event]]] = [
            ("later", 3, lambda: leave),
            ("gone", 1, lambda: stay),
            ("sooner", 2, lambda: leave),
            ("after it", 2, lambda: leave),
        ]
        waiting = [asyncio.create_task(take(slots, name, turn, event())) for name, turn, event in named]
        await asyncio.sleep(0)
        leave.set()
        await first  # gives its slot to the one with the lowest turn,
        waiting[1].cancel()  # which goes away before it has taken it
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(WAITS), slots.one(0):
            order.append("last")

    asyncio.run(scenario())
    assert order in (
        ["first", "sooner", "after it", "later", "last"],
        ["first", "gone", "sooner", "after it", "later", "last"],
    )
