"""Gather rollouts and scores of GRPO steps, also ahead of the optimizer while it updates on earlier steps.

With `max_steps_off_policy` N, the groups of step s may start when step s-1-N is finished. One policy samples a whole
group: the newest when its first rollout starts. The off-policy lag is therefore at most N optimizer steps. With N = 0
gathering and updates alternate. ART's loss weighs tokens by the ratio of their current to their recorded probability.

ART's `PipelineTrainer` overlaps too, but forgets unfinished groups after a kill and refuses backends such as `TorchBackend`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self, TypeVar

import art
from openai import OpenAIError

from training.errors import BadInput
from training.guard.deadline import STEP_TIMEOUT, MovingDeadline
from training.guard.stall_watch import CallWatch
from training.loop.decisions import reward_spread
from training.loop.selection import StepQuestions, TrainQuestion, replacement
from training.loop.slots import Slots
from training.record.history import AskedQuestion
from training.record.progress import Progress
from training.scoring.ruler import JudgeUse, judge_name
from training.scoring.scorer import Scorer
from training.settings import TrainerSettings
from training.task import DECISION, HasDecisions, Policy, RolloutError, Task

_Result = TypeVar("_Result")
_MAX_REASON_CHARS = 200
MOST_ATTEMPTS = 2
"""Attempts of a failing rollout."""
MOST_ERRORS = 0.02
"""Share of validation questions that may fail. Beyond it the rest is no fair sample: long rollouts fail first."""
MOST_FAILED_ROLLOUTS = 0.5
"""Share of the rollouts of a GRPO step that may fail. Beyond it the run ends: the remaining ones are biased."""


@dataclass(frozen=True)
class Gathered:
    """The groups of a step, without failed rollouts, groups that lost more than half of theirs and groups that were not scored."""

    groups: list[art.TrajectoryGroup]
    questions: list[AskedQuestion]
    """In the order in which they were asked, including those of dropped groups."""
    dropped: int
    failures: int
    judged_by: JudgeUse
    off_policy_steps: int
    """Off-policy lag of the oldest group, in optimizer steps."""
    seconds: float
    """Wall time from the start to the last score, including work for other steps in between."""


@dataclass
class _Asked:
    """The groups of one question: its rollouts, or one group for each decision of its episode."""

    question: TrainQuestion
    replaces: bool
    scored: list[art.TrajectoryGroup]
    failures: list[BaseException]
    judged_by: JudgeUse
    checkpoint_step: int
    played: int
    """Rollouts begun, failed ones included. The decisions of one episode count as one."""

    @property
    def dropped(self) -> bool:
        """Whether rollouts were played of which none can be learnt from. An episode may lack the wanted decisions."""
        return not self.scored and (self.question.whole or bool(self.failures))

    def results(self) -> list[AskedQuestion]:
        return [self._result(group) for group in self.scored or [None]]

    def _result(self, group: art.TrajectoryGroup | None) -> AskedQuestion:
        trajectories = group.trajectories if group else []
        verdicts = [bool(t.metrics["correct"]) for t in trajectories if "correct" in t.metrics]
        return AskedQuestion(
            index=self.question.index,
            kind=self.question.kind,
            decision=trajectories[0].metadata.get(DECISION) if trajectories else None,
            rollouts=len(trajectories),
            right=sum(verdicts) if verdicts else None,
            reward_std=reward_spread(group) if group else 0.0,
            replaces=self.replaces,
        )


@dataclass
class _Step:
    """The gathering of one step. Every finished rollout extends its deadline, which is meant for hangs, not for slow rollouts.

    The deadline applies only while the trainer waits for this step, since before that rollouts may wait for an update.
    """

    deadline: MovingDeadline

    tasks: list[asyncio.Task[_Asked]] = field(default_factory=list)
    reserve: list[TrainQuestion] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    parts: int = 0
    """Rollouts that were begun or will be; the decisions of an episode are one part."""
    rollouts_ended: int = 0
    advance: Callable[[], None] | None = None
    more: Callable[[int], None] | None = None

    def rollout_ended(self) -> None:
        self.rollouts_ended += 1
        if self.deadline.begun:
            self.deadline.move()
        if self.advance is not None:
            self.advance()


class Gatherer:
    """Gathers groups for steps. Leaving its context cancels what is unfinished and waits for that."""

    def __init__(
        self,
        task: Task,
        settings: TrainerSettings,
        scorer: Scorer,
        watch: CallWatch,
        progress: Progress,
        warn: Callable[[str], None],
        newest: tuple[int, Policy],
        decisions: Sequence[str] = (),
    ) -> None:
        """`newest` is the checkpoint step of the newest policy, and that policy. `decisions` are those to compare replies at."""
        self._task = task
        self._settings = settings
        self._scorer = scorer
        self._slots = Slots(settings.max_concurrent)
        self._watch = watch
        self._progress = progress
        self._warn = warn
        self._newest = newest
        self._decisions = tuple(decisions)
        self._steps: dict[int, _Step] = {}
        self._sampling: list[int] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        tasks = [task for step in self._steps.values() for task in step.tasks]
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        unused = sum((group.judged_by for group in outcomes if isinstance(group, _Asked)), JudgeUse())
        if unused.requests and kind is None:
            spent = f"{unused.requests} requests to the judge ({unused.cost:.2f} USD)"
            self._warn(f"{spent} were for groups gathered ahead that no step has used: they are in no step's figures")

    def sample_from(self, checkpoint_step: int, policy: Policy) -> None:
        """Sample groups that have not started by this policy."""
        self._newest = checkpoint_step, policy

    def checkpoints_in_use(self) -> set[int]:
        """Return the checkpoint steps that unfinished groups are sampled from."""
        return set(self._sampling)

    def begin(self, step: int, questions: StepQuestions) -> None:
        """Start the groups of step `step`, one per question, as soon as slots are free.

        A question of the reserve, of the same kind if there is one, replaces a group as soon as that turns out to have no
        reward spread.
        """
        under_way = self._steps[step] = _Step(MovingDeadline(STEP_TIMEOUT), reserve=list(questions.reserve))
        for question in questions.asked:
            self._ask(under_way, step, question, replaces=False)

    def _ask(self, under_way: _Step, step: int, question: TrainQuestion, *, replaces: bool) -> None:
        number = len(under_way.tasks) + 1
        play = self._group if question.whole else self._branched
        under_way.parts += self._settings.rollouts_per_group if question.whole else 1
        under_way.tasks.append(asyncio.create_task(play(under_way, step, number, question, replaces)))

    async def take(self, step: int) -> Gathered:
        """Wait for the groups of step `step`, provided that one of its rollouts ends every `STEP_TIMEOUT` seconds.

        Raises:
            BadInput: more than `MOST_FAILED_ROLLOUTS` failed, or the judge could not score any group.
        """
        settings, under_way = self._settings, self._steps[step]
        self._progress.stage(f"step {step}: rollouts", under_way.parts)
        for _ in range(under_way.rollouts_ended):
            self._progress.advance()
        under_way.advance, under_way.more = self._progress.advance, self._progress.extend
        under_way.deadline.move()
        results: list[_Asked] = []
        while len(results) < len(under_way.tasks):
            results = await asyncio.gather(*under_way.tasks)
        del self._steps[step]
        groups = [group for asked in results for group in asked.scored]
        failures = [failure for asked in results for failure in asked.failures]
        use = sum((asked.judged_by for asked in results), JudgeUse())
        played = sum(asked.played for asked in results)
        ends = ""
        if not groups and failures and not use.problem:
            ends = "none finished" if len(failures) == played else "and no group kept enough of its own"
        elif len(failures) > MOST_FAILED_ROLLOUTS * played:
            ends = f"more than {MOST_FAILED_ROLLOUTS:.0%} of {played}"
        tell_failures(failures, f"step {step}", self._warn, ends_run=ends)
        if use.problem:
            problem = f"step {step}: {judge_name(settings)} gave no usable scores ({use.problem})"
            if not groups:
                raise BadInput(f"{problem} for any group; the same command resumes after the last finished step")
            self._warn(f"{problem} for some of {len(results)} groups, which are left out")
        if not groups and not failures and not use.problem:
            raise BadInput(
                f"step {step}: no episode got as far as one of the decisions {', '.join(self._decisions)}: add earlier decisions, or "
                "demonstrations"
            )
        oldest = min(asked.checkpoint_step for asked in results if asked.scored)
        return Gathered(
            groups=groups,
            questions=[result for asked in results for result in asked.results()],
            dropped=sum(asked.dropped for asked in results),
            failures=len(failures),
            judged_by=use,
            off_policy_steps=self._newest[0] - oldest,
            seconds=under_way.ended - under_way.begun,
        )

    async def _branched(
        self, under_way: _Step, step: int, number: int, question: TrainQuestion, replaces: bool
    ) -> _Asked:
        """Play one episode and compare replies at its decisions."""
        assert isinstance(self._task, HasDecisions)
        asked = _Asked(question, replaces, [], [], JudgeUse(), checkpoint_step=-1, played=1)
        decide = partial(self._task.decide, continued=self._settings.decision_reward == "continued")
        replies, probes = self._settings.rollouts_per_group, self._settings.first_rollouts
        try:
            async with under_way.deadline.limit(), self._slots.one(step):
                asked.checkpoint_step, policy = self._newest
                self._sampling.append(asked.checkpoint_step)
                try:
                    with self._watch.call(f"question {number} in step {step}", turn=step):
                        asked.scored = await _attempted(
                            lambda: decide(policy, question.scenario, self._decisions, replies, probes)
                        )
                finally:
                    self._sampling.remove(asked.checkpoint_step)
        except Exception as failure:
            asked.failures.append(failure)
        finally:
            under_way.rollout_ended()
        under_way.ended = time.monotonic()
        return asked

    async def _group(self, under_way: _Step, step: int, number: int, question: TrainQuestion, replaces: bool) -> _Asked:
        """Play and score one group, while others are still being played."""
        sampled_by: tuple[int, Policy] | None = None

        async def rollout(name: str) -> art.Trajectory:
            nonlocal sampled_by
            try:
                async with under_way.deadline.limit(), self._slots.one(step):
                    if sampled_by is None:
                        sampled_by = self._newest
                        self._sampling.append(sampled_by[0])
                    with self._watch.call(name, turn=step):
                        policy = sampled_by[1]
                        return await _attempted(lambda: self._task.rollout(policy, question.scenario))
            finally:
                under_way.rollout_ended()

        async def play(numbers: Iterable[int]) -> list[art.Trajectory | BaseException]:
            names = (f"rollout {rollout_number} of question {number} in step {step}" for rollout_number in numbers)
            return await asyncio.gather(*map(rollout, names), return_exceptions=True)

        whole = self._settings.rollouts_per_group
        first = self._settings.first_rollouts
        try:
            outcomes = await play(range(1, first + 1))
            if first < whole:
                if all(_solved(outcome) for outcome in outcomes):
                    for _ in range(first, whole):
                        under_way.rollout_ended()
                else:
                    outcomes += await play(range(first + 1, whole + 1))
        finally:
            if sampled_by is not None:
                self._sampling.remove(sampled_by[0])
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        finished = [outcome for outcome in outcomes if isinstance(outcome, art.Trajectory)]
        group, use = None, JudgeUse()
        # What fails is rarely a random part of a group: long rollouts fail first. An advantage compares with the whole group.
        if len(finished) >= max(2, len(outcomes) / 2):
            with self._watch.call(f"scores of question {number} in step {step}", turn=step):
                group, use = await self._scorer.score(art.TrajectoryGroup(finished))
        under_way.ended = time.monotonic()
        without_spread = group is not None and reward_spread(group) <= self._settings.min_reward_std
        if without_spread and under_way.reserve:
            if under_way.deadline.begun:
                under_way.deadline.move()  # scoring may take longer than a rollout is allowed to
            self._ask(under_way, step, replacement(under_way.reserve, question.kind), replaces=True)
            if under_way.more is not None:
                under_way.more(self._settings.rollouts_per_group)
        played_by = sampled_by[0] if sampled_by else -1
        return _Asked(question, replaces, [group] if group else [], failures, use, played_by, len(outcomes))


async def _attempted(play: Callable[[], Awaitable[_Result]]) -> _Result:
    for _ in range(MOST_ATTEMPTS - 1):
        with suppress(Exception):
            return await play()
    return await play()


def _solved(outcome: art.Trajectory | BaseException) -> bool:
    """Return whether a rollout finished and its answer is known to be correct."""
    return isinstance(outcome, art.Trajectory) and bool(outcome.metrics.get("correct"))


def tell_failures(
    failures: Sequence[BaseException], where: str, warn: Callable[[str], None], *, ends_run: str = ""
) -> None:
    """Warn of failed rollouts.

    With `ends_run`, the reason why there were too many, raise BadInput, or the first failure itself if it is a bug. A
    failure that is BadInput is raised always: other rollouts would fail as it did.
    """
    if not failures:
        return
    for failure in failures:
        if not isinstance(failure, Exception) or isinstance(failure, BadInput):
            raise failure
    kinds = ", ".join(f"{count} {name}" for name, count in Counter(type(f).__name__ for f in failures).items())
    first = " ".join(str(failures[0]).split())[:_MAX_REASON_CHARS]
    message = f"{where}: {len(failures)} rollouts failed ({kinds}{': ' + first if first else ''})"
    if not ends_run:
        warn(message)
        return
    if isinstance(failures[0], RolloutError | TimeoutError | OSError | OpenAIError):
        raise BadInput(f"{message}, {ends_run}; the same command resumes after the last finished step") from failures[0]
    raise failures[0]
