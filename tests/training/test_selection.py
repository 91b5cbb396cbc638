"""Which questions steps ask: by learnability, in place of groups without spread, and the same ones after a kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import art
import pytest
from toy_run import Killed, ToyTask, settings, train

from training.errors import BadInput
from training.history import HISTORY_FILE, AskedQuestion, StepRecord, read_history
from training.selection import TrainQuestion, select_questions, success_beliefs
from training.task import Policy
from training.trainer import TrainingRun

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


def learnability(**changes: Any) -> Any:
    return settings(**{"question_selection": "learnability", "max_steps": 8, "groups_per_step": 5, **changes})


def test_learnable_questions_have_spread_where_shuffled_ones_have_little(tmp_path: Path) -> None:
    shuffled = train(tmp_path / "shuffled", settings(max_steps=8, groups_per_step=5, max_concurrent=4), Mixed())
    chosen = train(tmp_path / "chosen", learnability(max_concurrent=4), Mixed())
    trained = [sum(row.groups_trained for row in run.history) for run in (shuffled, chosen)]
    assert trained[1] >= 2 * trained[0]
    # 50 of 300 questions are open: nothing is known before the first step, then the kinds are.
    kinds = [Counter(question.kind for question in row.questions) for row in chosen.history[1:]]
    assert kinds[0]["open"] < 3 and sum(of_step["open"] for of_step in kinds[1:]) >= 15


def test_every_step_of_an_epoch_asks_each_kind_in_its_share() -> None:
    task = Mixed()
    selection = select_questions(task, task.train_scenarios(), settings(max_steps=70, groups_per_step=6))
    steps = [selection.for_step(step, []).asked for step in range(1, 71)]
    kinds = [Counter(question.kind for question in asked) for asked in steps]
    assert all(2 <= step["known"] <= 4 and 1 <= step["hopeless"] <= 3 and step["open"] <= 2 for step in kinds)
    assert sorted(question.index for asked in steps[:50] for question in asked) == list(range(300))
    assert [question.index for question in steps[0]] != [question.index for question in steps[50]]


def test_questions_rest_after_a_step_and_demonstrated_ones_are_not_asked(tmp_path: Path) -> None:
    task = Mixed()
    run = train(tmp_path, learnability(max_extra_groups=2), task)
    steps = asked(run)
    for position in range(len(steps)):
        assert len({index for step in steps[position : position + 5] for index in step}) == sum(
            map(len, steps[position : position + 5])
        )
    questions = {scenario for _, _, scenario in task.asked}
    assert questions.isdisjoint(task.demonstrated) and len(task.demonstrated) == 5


@pytest.mark.parametrize(("selection", "ahead"), [("shuffled", 0), ("learnability", 0), ("learnability", 2)])
def test_a_resumed_run_asks_the_same_questions_as_an_uninterrupted_one(
    selection: str, ahead: int, tmp_path: Path
) -> None:
    rules = learnability(
        question_selection=selection, max_steps_off_policy=ahead, max_extra_groups=2, validate_every=2, max_concurrent=1
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


def question(index: int, kind: str | None = None) -> TrainQuestion:
    return TrainQuestion(index, index, kind)


def row(step: int, *questions: AskedQuestion, **values: Any) -> StepRecord:
    return StepRecord(step=step, phase="grpo", checkpoint_step=step, seconds=1.0, questions=list(questions), **values)


def test_beliefs_are_the_kinds_rate_and_then_the_questions_own() -> None:
    easy = AskedQuestion(index=0, kind="easy", rollouts=4, right=4)
    hard = AskedQuestion(index=1, kind="hard", rollouts=4, right=1)
    dropped = AskedQuestion(index=2, kind="hard", rollouts=0)
    three = [question(0, "easy"), question(1, "hard"), question(2, "hard")]
    beliefs = success_beliefs(three, [row(1, easy, hard, dropped)], step=2, validation_questions=0)
    overall = (5 + 1) / (8 + 2)
    easy_rate, hard_rate = (4 + 4 * overall) / 8, (1 + 4 * overall) / 8
    assert beliefs[0] == pytest.approx((4 * easy_rate + 4, 4 * (1 - easy_rate)))
    assert beliefs[1] == pytest.approx((4 * hard_rate + 1, 4 * (1 - hard_rate) + 3))
    assert beliefs[2] == pytest.approx((4 * hard_rate, 4 * (1 - hard_rate)))
    # Two steps later the outcomes weigh 0.81 of that; a validation tells about all questions.
    validated = row(3, validation_accuracy=0.5, validation_errors=2)
    later = success_beliefs(three, [row(1, easy, hard), validated], step=4, validation_questions=12)
    overall = (0.81 * 5 + 5 + 1) / (0.81 * 8 + 10 + 2)
    hard_rate = (0.81 + 4 * overall) / (0.81 * 4 + 4)
    assert later[2] == pytest.approx((4 * hard_rate, 4 * (1 - hard_rate)))


def test_without_verdicts_learnability_is_refused(tmp_path: Path) -> None:
    class Silent(Mixed):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            del trajectory.metrics["correct"]
            return trajectory

    with pytest.raises(BadInput, match=r"this task does not say: use question_selection=shuffled$"):
        train(tmp_path, learnability(), Silent())


def test_a_step_that_needs_more_questions_than_there_are_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    task = ToyTask()
    rules = settings(demonstrations=20, question_selection="learnability", groups_per_step=41)
    with pytest.raises(BadInput, match=r"there are 40 to choose from: lower it, or give more train questions$"):
        train(tmp_path, rules, task)
    assert not task.asked and not task.demonstrated


@pytest.mark.parametrize("selection", ["shuffled", "learnability"])
def test_replacements_are_limited_to_the_questions_that_there_are(selection: str, tmp_path: Path) -> None:
    rules = settings(
        question_selection=selection,
        groups_per_step=36,
        max_extra_groups=11,
        min_reward_std=10,
        max_steps=1,
        demonstrations=0,
    )
    row = train(tmp_path, rules, ToyTask()).history[-1]
    assert len({question.index for question in row.questions}) == len(row.questions) == 40
