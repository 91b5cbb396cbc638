"""Which questions steps ask: shuffled epochs, in place of groups without spread, and the same ones after a kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import art
import pytest

from tests.training.toy_run import Killed, RecordedProgress, ToyTask, settings, train
from training.loop.selection import select_questions
from training.loop.trainer import TrainingRun
from training.record.history import HISTORY_FILE, read_history
from training.task import Policy

RATES = {"hopeless": 0.0, "open": 0.5, "known": 1.0}
"""Kind -> success rate of its questions."""


class Mixed(ToyTask):
    """Questions 0 to 299, of which every sixth can go either way. Outcomes depend on checkpoint and question alone."""

    def train_scenarios(self) -> list[int]:
        return list(range(300))

    def kind(self, scenario: int) -> str:
        return ("open", "hopeless", "known", "hopeless", "known", "known")[scenario % 6]

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        rate = RATES[self.kind(scenario)]
        every_second = self.times[policy.model, scenario] % 2 == 0
        correct = every_second if rate == 0.5 else rate == 1.0
        trajectory.reward, trajectory.metrics["correct"] = float(correct), correct
        return trajectory


def asked(run: TrainingRun) -> list[list[int]]:
    return [[question.index for question in row.questions] for row in run.history if row.phase == "grpo"]


def test_every_step_of_an_epoch_asks_each_kind_in_its_share() -> None:
    task = Mixed()
    selection = select_questions(task, task.train_scenarios(), settings(max_steps=70, groups_per_step=6))
    steps = [selection.for_step(step, ()).asked for step in range(1, 71)]
    kinds = [Counter(question.kind for question in asked) for asked in steps]
    assert all(2 <= step["known"] <= 4 and 1 <= step["hopeless"] <= 3 and step["open"] <= 2 for step in kinds)
    assert sorted(question.index for asked in steps[:50] for question in asked) == list(range(300))
    assert [question.index for question in steps[0]] != [question.index for question in steps[50]]


def test_demonstrated_questions_are_not_asked(tmp_path: Path) -> None:
    task = Mixed()
    train(tmp_path, settings(max_steps=8, groups_per_step=5, max_extra_groups=2), task)
    questions = {scenario for _, _, scenario in task.asked}
    assert questions.isdisjoint(task.demonstrated) and len(task.demonstrated) == 5


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_resumed_run_asks_the_same_questions_as_an_uninterrupted_one(ahead: int, tmp_path: Path) -> None:
    rules = settings(
        max_steps=8,
        groups_per_step=5,
        max_steps_off_policy=ahead,
        max_extra_groups=2,
        validate_every=2,
        max_concurrent=1,
    )
    whole = train(tmp_path / "whole", rules, Mixed())
    assert any(row.groups_replaced for row in whole.history)
    for kill in (30, 77, 120, 160):
        folder = tmp_path / str(kill)
        with pytest.raises(Killed):
            train(folder, rules, Mixed(die=lambda _, number, at=kill: number == at))
        before = read_history(folder / "tests" / "models" / "toy" / HISTORY_FILE)
        assert 0 < len(before) < len(whole.history)
        assert asked(train(folder, rules, Mixed())) == asked(whole)
    other = train(tmp_path / "other", rules.model_copy(update={"seed": 1}), Mixed())
    assert asked(other) != asked(whole)


def test_replacements_are_limited_to_the_questions_that_there_are(tmp_path: Path) -> None:
    rules = settings(
        groups_per_step=36,
        max_extra_groups=11,
        min_reward_std=10,
        max_steps=1,
        demonstrations=0,
    )
    row = train(tmp_path, rules, ToyTask()).history[-1]
    assert len({question.index for question in row.questions}) == len(row.questions) == 40


def test_fewer_questions_than_a_step_asks_are_a_warning_before_the_first_step(tmp_path: Path) -> None:
    for groups, warned in ((40, []), (41, ["groups_per_step=41: a step asks all 40 questions to train on"])):
        progress = RecordedProgress()
        run = train(tmp_path / str(groups), settings(max_steps=1, groups_per_step=groups), ToyTask(), progress)
        assert len(run.history[-1].questions) == 40
        assert [warning.split(",")[0] for warning in progress.warnings] == warned


def test_a_step_of_few_questions_is_filled_from_the_next_epoch(tmp_path: Path) -> None:
    questions = list(range(20))
    rules = settings(max_steps=6, groups_per_step=6)
    selection = select_questions(ToyTask(), questions, rules)
    steps = [[question.index for question in selection.for_step(step, ()).asked] for step in range(1, 7)]
    assert all(len(set(step)) == 6 for step in steps)
    assert sorted(steps[0] + steps[1] + steps[2] + steps[3][:2]) == questions, "every question of an epoch is asked"


@pytest.mark.parametrize(("groups", "steps"), [(6, 14), (8, 10), (40, 2)])
def test_epochs_are_passes_over_all_questions(groups: int, steps: int, tmp_path: Path) -> None:
    task = ToyTask()
    run = train(tmp_path, settings(max_steps=100, groups_per_step=groups, rollouts_per_group=2, epochs=2), task)
    assert run.stopped == f"epochs=2 done in {steps} steps"
    times = Counter(index for step in asked(run) for index in step)
    assert len(times) == 40 and min(times.values()) == 2


def test_questions_of_the_steps_are_demonstrated_if_the_others_yield_too_few_demonstrations(tmp_path: Path) -> None:
    class Halved(ToyTask):
        """Only even questions can be demonstrated."""

        def demonstrations(self, scenarios: list[int], limit: int) -> list[art.Trajectory]:
            return super().demonstrations([number for number in scenarios if number % 2 == 0], limit)

    recorded, task = RecordedProgress(), Halved()
    train(tmp_path, settings(max_steps=5, demonstrations=20), task, recorded)
    assert len(task.demonstrated) == 20 and recorded.warnings == []


def test_too_few_demonstrations_are_told(tmp_path: Path) -> None:
    recorded = RecordedProgress()
    run = train(tmp_path, settings(max_steps=1, demonstrations=41), ToyTask(), recorded)
    told = "warm start: 40 demonstrations instead of 41, because no more can be made from the 40 train scenarios"
    assert recorded.warnings == [told] == run.history[0].warnings
    assert train(tmp_path / "enough", settings(max_steps=1, demonstrations=40), ToyTask()).history[0].warnings == []
