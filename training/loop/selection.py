"""Choose the questions of the GRPO steps: shuffled epochs with all kinds in each step, or those that decisions are open in.

All choices follow from the settings and the rows of finished steps, so a resumed run chooses as the killed one would have.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from training.record.history import StepRecord
from training.settings import TrainerSettings
from training.task import HasDecisions, Task, TellsKinds

SOLVED = 0.9
"""Share of right replies from which a question counts as solved. One slip among eight sampled replies leaves it open."""


@dataclass(frozen=True)
class TrainQuestion:
    """A train scenario, its position in the run's fixed order, and its kind if the task has kinds."""

    index: int
    scenario: Any
    kind: str | None
    whole: bool = True
    """Whether whole episodes of it are compared, and not replies at its decisions."""


@dataclass(frozen=True)
class StepQuestions:
    """The questions of a step, and its reserve: questions that replace groups without spread, in this order."""

    asked: list[TrainQuestion]
    reserve: list[TrainQuestion]


class Selection(Protocol):
    """Chooses the questions of GRPO steps, and those to demonstrate."""

    def for_step(self, step: int, before: Sequence[StepRecord]) -> StepQuestions:
        """Return the questions of GRPO step `step` (the first is 1), given the rows of finished steps."""
        ...

    def unasked(self) -> list[Any]:
        """Return the scenarios that no GRPO step will ask, or that are the least likely to be asked."""
        ...

    def scenarios(self) -> list[Any]:
        """Return all scenarios, in the order in which they are demonstrated."""
        ...


def select_questions(
    task: Task, scenarios: Sequence[Any], settings: TrainerSettings, decisions: Sequence[str] = ()
) -> Selection:
    """Return the selection of a run that compares replies at `decisions`, or whole episodes if there are none."""
    deciding = task if decisions and isinstance(task, HasDecisions) else None
    questions = [
        TrainQuestion(index, scenario, task.kind(scenario) if isinstance(task, TellsKinds) else None, deciding is None)
        for index, scenario in enumerate(scenarios)
    ]
    if deciding:
        open_at_first = {question.index for question in questions if deciding.is_open(question.scenario, decisions)}
        return OpenQuestions(questions, open_at_first, settings)
    return QuestionSelection(questions, settings)


class OpenQuestions:
    """Chooses questions whose decisions are open, that is, where replies are likely to differ, and a share of others.

    A question is open if the policy did not solve it when it was last asked, and before that if the task says so. Those
    asked least often come first. The others keep the policy from unlearning what it can do.
    """

    def __init__(
        self, questions: Sequence[TrainQuestion], open_at_first: Collection[int], settings: TrainerSettings
    ) -> None:
        """`open_at_first` are the indices of the questions that the task calls open."""
        self._settings = settings
        self._open_at_first = set(open_at_first)
        self._order = _spread_kinds(questions, random.Random(f"decisions-{settings.seed}"))
        self._chosen: list[list[TrainQuestion]] = []

    def for_step(self, step: int, before: Sequence[StepRecord]) -> StepQuestions:
        # Only rows that are there whenever this step begins may count: a resumed run must choose the same questions.
        while len(self._chosen) < step:
            last = len(self._chosen) - self._settings.max_steps_off_policy
            self._chosen.append(self._choose(len(self._chosen) + 1, [row for row in before if row.step <= last]))
        return StepQuestions(list(self._chosen[step - 1]), [])

    def unasked(self) -> list[Any]:
        easy = [question.scenario for question in self._order if question.index not in self._open_at_first]
        expected = self._settings.max_steps * (self._settings.groups_per_step - self._open_count)
        return easy[expected:]

    def scenarios(self) -> list[Any]:
        return [question.scenario for question in reversed(self._order)]

    @property
    def _open_count(self) -> int:
        return round(self._settings.open_share * self._settings.groups_per_step)

    def _choose(self, step: int, before: Sequence[StepRecord]) -> list[TrainQuestion]:
        settings = self._settings
        times = Counter(question.index for chosen in self._chosen for question in chosen)
        ranked = sorted(self._order, key=lambda question: times[question.index])
        share = _solved_shares(before)
        is_open = {
            index: share[index] < SOLVED if index in share else index in self._open_at_first
            for index in (question.index for question in ranked)
        }
        asked = [question for question in ranked if is_open[question.index]][: self._open_count]
        # Open ones come last among the others: the step would have more of them than its share.
        taken = {question.index for question in asked}
        rest = [question for question in ranked if question.index not in taken]
        if settings.open_share:
            rest.sort(key=lambda question: is_open[question.index])
        asked += rest[: settings.groups_per_step - len(asked)]
        random.Random(f"decisions-{settings.seed}-{step}").shuffle(asked)
        return asked


def _solved_shares(rows: Sequence[StepRecord]) -> dict[int, float]:
    """Return the share of right replies of each question when it was last asked."""
    shares: dict[int, float] = {}
    for row in rows:
        of_row: defaultdict[int, list[float]] = defaultdict(list)
        for question in row.questions:
            if question.right is not None:
                of_row[question.index].append(question.right / question.rollouts)
        shares.update((index, statistics.fmean(parts)) for index, parts in of_row.items())
    return shares


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

    def for_step(self, step: int, before: Sequence[StepRecord] = ()) -> StepQuestions:
        batch = self._batches[step - 1]
        count = self._settings.groups_per_step
        return StepQuestions(batch[:count], batch[count:])

    def unasked(self) -> list[Any]:
        asked = {question.index for batch in self._batches for question in batch}
        return [question.scenario for question in self._order if question.index not in asked]

    def scenarios(self) -> list[Any]:
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
