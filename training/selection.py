"""Choose the questions of the GRPO steps: shuffled epochs with all kinds in each step.

All choices follow from the settings, so a resumed run chooses as the killed one would have.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.settings import TrainerSettings
from training.task import Task, TellsKinds


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


def select_questions(task: Task, scenarios: Sequence[Any], settings: TrainerSettings) -> QuestionSelection:
    """Return the selection of a run."""
    questions = [
        TrainQuestion(index, scenario, task.kind(scenario) if isinstance(task, TellsKinds) else None)
        for index, scenario in enumerate(scenarios)
    ]
    return QuestionSelection(questions, settings)


class QuestionSelection:
    """Chooses questions, and keeps some back for demonstrations.

    Epochs go over all questions. Each has a random order in which every kind is spread evenly. Otherwise a step of a few
    questions would often have none of a rare kind. The last step of an epoch is filled up to `groups_per_step` questions
    with some of the next epoch. A policy unlearns within a few steps what only that kind rewards, such
    as a second search.
    """

    def __init__(self, questions: Sequence[TrainQuestion], settings: TrainerSettings) -> None:
        self._questions = list(questions)
        self._settings = settings
        left = max(0, len(self._questions) - settings.groups_per_step)
        per_step = settings.groups_per_step + min(settings.max_extra_groups, left)
        steps_per_epoch = max(1, math.ceil(len(self._questions) / per_step))
        self._batches: list[list[TrainQuestion]] = []
        for epoch in range(math.ceil(settings.max_steps / steps_per_epoch) + 1):
            order = _spread_kinds(self._questions, random.Random(f"epoch-{settings.seed}-{epoch}"))
            if self._batches and len(last := self._batches[-1]) < settings.groups_per_step:
                # A step of few questions would learn little, and its figures would say little.
                missing = min(settings.groups_per_step, len(order)) - len(last)
                asked = {question.index for question in last}
                last += [question for question in order if question.index not in asked][:missing]
            self._batches += [order[first : first + per_step] for first in range(0, len(order), per_step)]
        del self._batches[settings.max_steps :]
        self._order = list(questions)
        random.Random(settings.seed).shuffle(self._order)

    def for_step(self, step: int) -> StepQuestions:
        """Return the questions of GRPO step `step` (the first is 1)."""
        batch = self._batches[step - 1]
        count = self._settings.groups_per_step
        return StepQuestions(batch[:count], batch[count:])

    def unasked(self) -> list[Any]:
        """Return the scenarios that no GRPO step will ask."""
        asked = {question.index for batch in self._batches for question in batch}
        return [question.scenario for question in self._order if question.index not in asked]

    def scenarios(self) -> list[Any]:
        """Return all scenarios, in the order in which they are demonstrated."""
        return [question.scenario for question in self._order]


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


def replacement(reserve: list[TrainQuestion], kind: str | None) -> TrainQuestion:
    """Take the first question of `kind` from the reserve, or the first if there is none.

    A kind whose groups all lack spread would otherwise have no part in the update, and what only that kind rewards, such
    as a second search, is unlearnt within a step or two.
    """
    place = next((place for place, question in enumerate(reserve) if question.kind == kind), 0)
    return reserve.pop(place)
