"""What is gathered ahead: that it overlaps, its bound, and that stops, kills and errors are as they are without it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
import pytest
from toy_run import CountingBackend, CountingModel, Killed, Told, ToyTask, settings

import training.trainer
from training.errors import BadInput
from training.gathering import Slots
from training.history import HISTORY_FILE, read_history
from training.judge import JudgeUse
from training.settings import TrainerSettings
from training.task import Policy, RolloutError
from training.trainer import Trainer, TrainingRun

WAITS = 20.0
"""Seconds after which something that should have come never will."""


async def comes(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAITS):
        await event.wait()


def version(policy: Policy) -> int:
    return int(policy.model.partition("@")[2])


class Scripted(ToyTask):
    """Says what happens, in order; `play` and `judge` are awaited within each sampled rollout and each group's score."""

    def __init__(self, play: Any = None, judge: Any = None) -> None:
        super().__init__()
        self.events: list[str] = []
        self.versions: dict[int, set[int]] = defaultdict(set)
        """Question -> checkpoints that it was sampled from."""
        self.play, self.judge = play, judge

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        if not policy.temperature:
            self.events.append(f"validate @{version(policy)}")
            await asyncio.sleep(0)
            return await super().rollout(policy, scenario)
        self.events.append(f"play {scenario}")
        self.versions[scenario].add(version(policy))
        if self.play:
            await self.play(policy, scenario)
        return await super().rollout(policy, scenario)

    async def score(self, group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        question = int(group.trajectories[0].metadata["scenario_id"])
        if self.judge and len(group.trajectories) > 1:
            await self.judge(question)
        self.events.append(f"score {question}")
        return await super().score(group)


class ScriptedBackend(CountingBackend):
    """`update` is awaited within each update, with its number and its questions."""

    def __init__(self, model: CountingModel, events: list[str], update: Any = None) -> None:
        super().__init__(model)
        self.events, self.update = events, update
        self.trained: list[list[int]] = []

    async def train(self, model: Any, groups: Any, *, learning_rate: float, **arguments: Any) -> SimpleNamespace:
        self.trained.append([int(group.trajectories[0].metadata["scenario_id"]) for group in groups])
        number = self.model.step() + 1
        self.events.append(f"update to @{number}")
        if self.update:
            await self.update(number)
        result = await super().train(model, groups, learning_rate=learning_rate, **arguments)
        self.events.append(f"updated to @{number}")
        return result


def run(
    folder: Path, rules: TrainerSettings, task: Scripted, update: Any = None, told: Told | None = None
) -> tuple[TrainingRun, ScriptedBackend]:
    """A run after which nothing is left over in the event loop."""
    model = CountingModel(folder)
    backend = ScriptedBackend(model, task.events, update)

    async def whole() -> TrainingRun:
        try:
            return await Trainer(task, model, backend, rules, max_tokens=8, progress=told).run()
        finally:
            coroutines = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
            assert not [name for name in coroutines if name.startswith("Gatherer")], "nothing goes on after the run"

    return asyncio.run(whole()), backend


def first_update_after(event: asyncio.Event) -> Callable[[int], Any]:
    """For `run`: the update of step 1, the second checkpoint, takes until then."""

    async def update(number: int) -> None:
        if number == 2:
            await comes(event)

    return update


def ahead(steps: int, **changes: Any) -> TrainerSettings:
    return settings(max_steps_off_policy=steps, **changes)


def questions(folder: Path, **changes: Any) -> list[list[int]]:
    """What each step asks, by a run that gathers nothing ahead."""
    _, backend = run(folder, ahead(0, **changes), Scripted())
    return backend.trained


def test_without_it_a_step_is_gathered_scored_and_updated_on_before_the_next_begins(tmp_path: Path) -> None:
    task = Scripted()
    finished, backend = run(tmp_path, ahead(0, max_steps=3, validate_every=1, validation_questions=2), task)
    stages = [event.split()[0] for event in task.events if event.startswith(("play", "update"))]
    assert [stage for stage, before in pairwise([*stages, None]) if stage != before] == ["play", "update", "updated"] * 3
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
def test_no_group_is_older_than_the_bound_and_all_of_it_is_of_one_policy(bound: int, slots: int, seed: int, tmp_path: Path) -> None:
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


def test_few_slots_go_to_the_earlier_step_and_a_group_to_the_policy_that_is_the_newest_when_it_begins(tmp_path: Path) -> None:
    async def briefly(*_: Any) -> None:
        await asyncio.sleep(0)

    task = Scripted(play=briefly)
    _, backend = run(tmp_path, ahead(1, max_steps=3, max_concurrent=1), task, briefly)
    played = [int(event.split()[1]) for event in task.events if event.startswith("play")]
    assert played == [question for asked in backend.trained for question in asked for _ in range(4)]
    assert [task.versions[question] for question in backend.trained[1]] == [{1}, {2}, {2}]


def test_a_validation_does_not_wait_for_what_is_gathered_ahead(tmp_path: Path) -> None:
    rules = {"max_steps": 2, "max_concurrent": 2, "validate_every": 1, "validation_questions": 5}
    asked = questions(tmp_path / "plain", **rules)
    validated = asyncio.Event()

    async def play(_: Policy, scenario: int) -> None:
        if scenario in asked[1]:
            await comes(validated)

    class Tells(Told):
        def step(self, row: Any) -> None:
            super().step(row)
            if row.step == 1:
                validated.set()

    told = Tells()
    run(tmp_path / "ahead", ahead(1, **rules), Scripted(play=play), told=told)
    assert [row.validation_errors for row in told.rows] == [0, 0, 0] and told.rows[2].off_policy_steps == 1


@pytest.mark.parametrize("bound", [1, 2])
def test_a_killed_run_asks_again_what_was_only_gathered_ahead(bound: int, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("rules", [{"stop_tokens": 300}, {"validate_every": 1, "stop_target": 0.6, "validation_questions": 5}])
def test_a_stop_rule_cancels_what_was_gathered_ahead(rules: dict[str, Any], tmp_path: Path) -> None:
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

    told = Told()
    finished, backend = run(tmp_path / "ahead", ahead(2, **rules), Scripted(play=hang), told=told)
    assert finished.stopped == expected.stopped
    assert len(finished.history) == len(expected.history) and backend.trained == plain.trained
    assert cancelled and not last & set(cancelled)
    assert len(told.rows) == len(finished.history) and told.warnings == []


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


def test_errors_ahead_are_told_when_their_step_comes_and_what_is_finished_stays(tmp_path: Path) -> None:
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

    told = Told()
    run(tmp_path / "ahead", ahead(1, max_steps=3), Scripted(play=play), first_update_after(failed), told)
    assert [len(row.warnings) for row in told.rows] == [0, 0, 1, 0]
    assert told.rows[2].warnings[0].startswith("step 2: 4 rollouts failed (4 OSError: the connection")
    assert [(row.rollout_errors, row.groups_dropped) for row in told.rows] == [(0, 0), (0, 0), (4, 1), (0, 0)]


@pytest.mark.parametrize(("broken", "ends"), [(1, False), (2, True)])
def test_a_step_whose_rollouts_mostly_fail_ends_the_run(broken: int, ends: bool, tmp_path: Path) -> None:
    asked = questions(tmp_path / "plain", max_steps=2)

    async def play(_: Policy, scenario: int) -> None:
        if scenario in asked[1][:broken]:
            raise RolloutError("the judge gave no verdict")

    if ends:
        told = r"^step 2: 8 rollouts failed \(8 RolloutError: the judge .* more than 50% of 12; the same command goes on"
        with pytest.raises(BadInput, match=told):
            run(tmp_path / "run", ahead(0, max_steps=2), Scripted(play=play))
    else:
        run(tmp_path / "run", ahead(0, max_steps=2), Scripted(play=play))
    rows = read_history(tmp_path / "run" / "tests/models/toy" / HISTORY_FILE)
    assert [row.step for row in rows] == ([0, 1] if ends else [0, 1, 2])


def test_the_time_that_an_update_takes_is_not_the_rollouts(tmp_path: Path) -> None:
    asked = questions(tmp_path / "plain", max_steps=2)
    updated = asyncio.Event()

    async def play(_: Policy, scenario: int) -> None:
        if scenario in asked[1]:
            await updated.wait()

    async def update(number: int) -> None:
        if number == 2:
            await asyncio.sleep(0.5)
            updated.set()

    finished, _ = run(tmp_path / "ahead", ahead(1, max_steps=2, step_timeout=0.3), Scripted(play=play), update)
    assert finished.history[2].rollout_errors == 0 and finished.history[2].off_policy_steps == 1
    assert finished.history[2].rollout_seconds > 0.4 > finished.history[2].seconds

    async def hang(_: Policy, scenario: int) -> None:
        if scenario in asked[1]:
            await asyncio.Event().wait()

    with pytest.raises(BadInput, match=r"step 2: 12 rollouts failed \(12 TimeoutError\), none finished"):
        run(tmp_path / "hangs", ahead(1, max_steps=2, step_timeout=0.3), Scripted(play=hang), update)


def test_the_judges_cost_is_in_the_row_of_the_step_that_it_was_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Judged:
        def __init__(self, task: Scripted, *_: Any) -> None:
            self.task = task

        async def score(self, group: art.TrajectoryGroup) -> tuple[art.TrajectoryGroup, JudgeUse]:
            scored = await self.task.score(group)
            price = float(group.trajectories[0].metadata["scenario_id"])
            return scored, JudgeUse(requests=1, seconds=1.0, cost=price)

    monkeypatch.setattr(training.trainer, "Scorer", Judged)

    async def slowly(_: int) -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    told = Told()
    finished, backend = run(tmp_path, ahead(2, stop_tokens=300), Scripted(), slowly, told)
    for row, asked in zip(finished.history[1:], backend.trained, strict=True):
        assert (row.judge_requests, row.judge_cost) == (3, sum(asked))
    assert len(told.warnings) == 1 and "6 requests to the judge" in told.warnings[0]
    assert "that no step has used" in told.warnings[0]


def test_each_bar_of_the_progress_is_filled_by_its_own_stage(tmp_path: Path) -> None:
    class Bars(Told):
        def __init__(self) -> None:
            super().__init__()
            self.stages: list[list[Any]] = []

        def stage(self, description: str, total: int) -> None:
            self.stages.append([description, total, 0])

        def advance(self) -> None:
            self.stages[-1][2] += 1

    async def briefly(*_: Any) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    bars = Bars()
    run(tmp_path, ahead(2, max_steps=4, validate_every=2, validation_questions=4), Scripted(play=briefly), briefly, bars)
    assert [name for name, _, _ in bars.stages if "rollouts" in name] == [f"step {step}: rollouts" for step in (1, 2, 3, 4)]
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
    assert order in (["first", "sooner", "after it", "later", "last"], ["first", "gone", "sooner", "after it", "later", "last"])
