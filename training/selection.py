"""Choose the questions of the GRPO steps: shuffled epochs with all kinds in each step, or the questions with the most
uncertain outcome.

A group teaches only if its rollouts differ, and the chance of that is highest for questions with a success rate near
one half. `LearnableQuestions` keeps a Beta posterior of the success rate per question, draws a rate from each (Thompson
sampling) and asks those with the draws nearest to one half. GRESO (arXiv 2506.02177) is similar: it skips questions by
their recent outcomes.

All choices follow from the settings and the history rows, so a resumed run chooses as the killed one would have.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from training.errors import BadInput
from training.history import StepRecord
from training.settings import TrainerSettings
from training.task import Task, TellsKinds

_PRIOR_ROLLOUTS = 4.0
"""Weight of each prior, in rollouts: of the overall rate for a kind, and of the kind's rate for a question."""
_KEPT_PER_STEP = 0.9
"""Decay of an outcome's weight per step, because the policy of ten steps ago says little about the current one."""
_REST_STEPS = 4
"""Steps before a question may be asked again, unless there are no others: no question may dominate the training."""


@dataclass(frozen=True)
class TrainQuestion:
    """A train scenario, its position in the run's fixed order, and its kind if the task has kinds."""

    index: int
    scenario: Any
    kind: str | None


@dataclass(frozen=True)
class StepQuestions:
    """The questions of a step, and its reserve: questions that replace groups without spread, in this order."""

    asked: list[TrainQuestion]
    reserve: list[TrainQuestion]


class QuestionSelection(Protocol):
    """Chooses questions, and keeps some back for demonstrations."""

    def for_step(self, step: int, rows: Sequence[StepRecord]) -> StepQuestions:
        """Return the questions of GRPO step `step` (the first is 1), given the history. Rows that may not be known yet
        are ignored.
        """
        ...

    def demonstrable(self) -> list[Any]:
        """Return the scenarios that no GRPO step will ask, if there are enough of them for the demonstrations, else
        all.

        The policy already knows demonstrated questions: all rollouts of their groups are correct, so they teach
        nothing.
        """
        ...


def select_questions(task: Task, scenarios: Sequence[Any], settings: TrainerSettings) -> QuestionSelection:
    """Return the selection that the settings choose.

    Raises:
        BadInput: a step would ask more questions than there are.
    """
    questions = [
        TrainQuestion(index, scenario, task.kind(scenario) if isinstance(task, TellsKinds) else None)
        for index, scenario in enumerate(scenarios)
    ]
    chosen = LearnableQuestions if settings.question_selection == "learnability" else ShuffledQuestions
    return chosen(questions, settings)


class ShuffledQuestions:
    """Epochs over all questions. Each has a random order in which every kind is spread evenly.

    Otherwise a step of a few questions would often have none of a rare kind. A policy unlearns within a few steps what
    only that kind rewards, such as a second search.
    """

    def __init__(self, questions: Sequence[TrainQuestion], settings: TrainerSettings) -> None:
        self._questions = list(questions)
        self._settings = settings
        _require_enough(len(self._questions), 1, settings)
        left = max(0, len(self._questions) - settings.groups_per_step)
        per_step = settings.groups_per_step + min(settings.max_extra_groups, left)
        steps_per_epoch = max(1, math.ceil(len(self._questions) / per_step))
        self._batches: list[list[TrainQuestion]] = []
        for epoch in range(math.ceil(settings.max_steps / steps_per_epoch)):
            order = _spread_kinds(self._questions, random.Random(f"epoch-{settings.seed}-{epoch}"))
            self._batches += [order[first : first + per_step] for first in range(0, len(order), per_step)]
        del self._batches[settings.max_steps :]
        self._order = list(questions)
        random.Random(settings.seed).shuffle(self._order)

    def for_step(self, step: int, rows: Sequence[StepRecord]) -> StepQuestions:
        batch = self._batches[step - 1]
        count = self._settings.groups_per_step
        return StepQuestions(batch[:count], batch[count:])

    def demonstrable(self) -> list[Any]:
        asked = {question.index for batch in self._batches for question in batch}
        rest = [question.scenario for question in self._order if question.index not in asked]
        enough = len(rest) >= self._settings.warm_start_demonstrations
        return rest if enough else [question.scenario for question in self._order]


def _spread_kinds(questions: Sequence[TrainQuestion], rng: random.Random) -> list[TrainQuestion]:
    """Shuffle the questions so that any stretch of them has about the same share of each kind as all of them."""
    of_kind: defaultdict[str | None, list[TrainQuestion]] = defaultdict(list)
    for question in questions:
        of_kind[question.kind].append(question)
    placed: list[tuple[float, int, TrainQuestion]] = []
    for members in of_kind.values():
        rng.shuffle(members)
        offset = rng.random()
        placed += [((rank + offset) / len(members), question.index, question) for rank, question in enumerate(members)]
    return [question for _, _, question in sorted(placed, key=lambda place: place[:2])]


class LearnableQuestions:
    """Thompson sampling of the questions whose success rate is most likely near one half."""

    def __init__(self, questions: Sequence[TrainQuestion], settings: TrainerSettings) -> None:
        self._settings = settings
        order = list(questions)
        random.Random(settings.seed).shuffle(order)
        # The task chooses its demonstrations from twice as many questions, because it may refuse some and has its own
        # order.
        kept_back = 2 * settings.warm_start_demonstrations
        apart = kept_back <= len(order) / 2
        self._questions = order[kept_back:] if apart else order
        self._demonstrable = [question.scenario for question in (order[:kept_back] if apart else order)]
        _require_enough(len(self._questions), settings.groups_per_step, settings)
        self._first_asked: dict[int, set[int]] = {}

    def for_step(self, step: int, rows: Sequence[StepRecord]) -> StepQuestions:
        # Steps gathered ahead are chosen before the steps just ahead of them are finished.
        known = [row for row in rows if row.step < max(1, step - self._settings.max_steps_off_policy)]
        beliefs = success_beliefs(self._questions, known, step, self._settings.validation_questions)
        rng = random.Random(f"questions-{self._settings.seed}-{step}")
        drawn = {question.index: rng.betavariate(*beliefs[question.index]) for question in self._questions}
        resting = self._resting(step, rows, known)
        order = sorted(
            self._questions, key=lambda question: (question.index in resting, abs(drawn[question.index] - 0.5))
        )
        count, extra = self._settings.groups_per_step, self._settings.max_extra_groups
        self._first_asked[step] = {question.index for question in order[:count]}
        return StepQuestions(order[:count], order[count : count + extra])

    def demonstrable(self) -> list[Any]:
        return self._demonstrable

    def _resting(self, step: int, rows: Sequence[StepRecord], known: Sequence[StepRecord]) -> set[int]:
        """Return the recently asked questions. Replacements in steps that are still in progress are not known yet, so
        they are not included.
        """
        last_known = known[-1].step if known else 0
        resting = {asked.index for row in known if row.step >= step - _REST_STEPS for asked in row.questions}
        finished = {row.step: row for row in rows}
        for earlier in range(max(last_known + 1, 1), step):
            if earlier in finished:
                resting |= {asked.index for asked in finished[earlier].questions if not asked.replaces}
            else:
                resting |= self._first_asked[earlier]
        return resting


def success_beliefs(
    questions: Sequence[TrainQuestion], rows: Sequence[StepRecord], step: int, validation_questions: int
) -> dict[int, tuple[float, float]]:
    """Map each question to the parameters of the Beta posterior of its success rate at step `step`.

    The prior of a question is the rate of its kind, that of a kind is the rate over all questions, validations included; each
    weighs `_PRIOR_ROLLOUTS` rollouts. Outcomes lose weight with age.

    Raises:
        BadInput: the task does not report whether a rollout was correct.
    """
    right: defaultdict[Any, float] = defaultdict(float)
    count: defaultdict[Any, float] = defaultdict(float)
    total = "all"
    for row in rows:
        weight = _KEPT_PER_STEP ** (step - 1 - row.step)
        if row.validation_accuracy is not None:
            answered = validation_questions - row.validation_errors
            right[total] += weight * answered * row.validation_accuracy
            count[total] += weight * answered
        for asked in row.questions:
            if not asked.rollouts:
                continue
            if asked.right is None:
                raise BadInput(
                    "question_selection=learnability needs to know which rollouts are correct, and this task does not say: "
                    "use question_selection=shuffled"
                )
            for key in (total, ("kind", asked.kind), ("question", asked.index)):
                right[key] += weight * asked.right
                count[key] += weight * asked.rollouts
    overall = (right[total] + 1) / (count[total] + 2)

    def belief(question: TrainQuestion) -> tuple[float, float]:
        kind, own = ("kind", question.kind), ("question", question.index)
        rate = (right[kind] + _PRIOR_ROLLOUTS * overall) / (count[kind] + _PRIOR_ROLLOUTS)
        return _PRIOR_ROLLOUTS * rate + right[own], _PRIOR_ROLLOUTS * (1 - rate) + count[own] - right[own]

    return {question.index: belief(question) for question in questions}


def replacement(reserve: list[TrainQuestion], kind: str | None) -> TrainQuestion:
    """Take the first question of `kind` from the reserve, or the first if there is none.

    A kind whose groups all lack spread would otherwise have no part in the update, and what only that kind rewards, such
    as a second search, is unlearnt within a step or two.
    """
    place = next((place for place, question in enumerate(reserve) if question.kind == kind), 0)
    return reserve.pop(place)


def _require_enough(there: int, needed: int, settings: TrainerSettings) -> None:
    if not settings.max_steps or there >= needed:
        return
    raise BadInput(
        f"a step asks groups_per_step={settings.groups_per_step} questions, and there are {there} to choose from: lower it, or "
        "give more train questions"
    )
