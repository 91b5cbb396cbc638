"""Validation during training: the latest policy on held-out questions."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import art

from training.errors import BadInput
from training.guard.deadline import STEP_TIMEOUT, MovingDeadline
from training.guard.stall_watch import CallWatch
from training.loop.gathering import MOST_ATTEMPTS, MOST_ERRORS, tell_failures
from training.loop.policy import current_policy
from training.record.history import StepRecord
from training.record.progress import Progress
from training.scoring.ruler import judge_name
from training.scoring.scorer import Scorer, with_verdicts
from training.scoring.win_rate import WinRate
from training.settings import TrainerSettings
from training.task import UNLABELLED, Task


class Validator:
    """Asks the latest policy of a run the held-out questions."""

    def __init__(
        self,
        task: Task,
        scenarios: Sequence[Any],
        model: art.TrainableModel,
        settings: TrainerSettings,
        *,
        scorer: Scorer,
        max_tokens: int,
        wins: WinRate | None,
        watch: CallWatch,
        progress: Progress,
        warn: Callable[[str], None],
    ) -> None:
        """`wins` compares answers with those before the first step; None when no win rate is measured."""
        self._task = task
        self._scenarios = scenarios
        self._model = model
        self._settings = settings
        self._scorer = scorer
        self._max_tokens = max_tokens
        self._wins = wins
        self._watch = watch
        self._progress = progress
        self._warn = warn

    async def validate(self, row: StepRecord) -> StepRecord:
        """Ask the policy after the row's step the held-out questions, decoded greedily, and return the row with the results.

        Failed questions are asked again. If more than the share `MOST_ERRORS` still fail, the row has no validation figures,
        because the rest is not a fair sample.

        Raises:
            BadInput: the task does not say which answers are correct, the judge of the win rate made no comparison, or the
                validation before the first step, which later ones are compared with, failed.
        """
        started = time.monotonic()
        policy = current_policy(self._model, self._settings, max_tokens=self._max_tokens, greedy=True)
        slots = asyncio.Semaphore(
            self._settings.max_concurrent
        )  # not the gatherer's: rollouts gathered ahead may hold all of those

        deadline = MovingDeadline(STEP_TIMEOUT)

        async def one(number: int) -> art.TrajectoryGroup:
            try:
                async with deadline.limit(), slots:
                    with self._watch.call(f"validation on question {number + 1} after step {row.step}", turn=row.step):
                        trajectory = await self._task.rollout(policy, self._scenarios[number])
                        trajectory.reward = await self._scorer.score_alone(trajectory)
                        return art.TrajectoryGroup([trajectory])
            finally:
                deadline.move()

        async def ask(numbers: Sequence[int]) -> list[art.TrajectoryGroup | BaseException]:
            self._progress.stage(f"step {row.step}: validation", len(numbers))
            deadline.move()
            asked = [asyncio.ensure_future(one(number)) for number in numbers]
            for question in asked:
                question.add_done_callback(lambda _: self._progress.advance())
            return await asyncio.gather(*asked, return_exceptions=True)

        outcomes = await ask(range(len(self._scenarios)))
        for _ in range(MOST_ATTEMPTS - 1):
            failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
            for number, outcome in zip(failed, await ask(failed) if failed else (), strict=True):
                outcomes[number] = outcome
        groups = [outcome for outcome in outcomes if isinstance(outcome, art.TrajectoryGroup)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        ends = "" if groups else "none finished"
        tell_failures(failures, f"validation after step {row.step}", self._warn, ends_run=ends)
        await self._model.log(groups, split="val", step=row.checkpoint_step)
        self._progress.rollouts(groups, split="val", step=row.step)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        judged = [float(t.metrics["correct"]) for t in trajectories if "correct" in t.metrics]
        if not judged and self._settings.validation_metric == "accuracy":
            raise BadInput(
                "validation_metric=accuracy: this task does not say what is correct; use validation_metric=reward, or win_rate"
            )
        rewards = [t.reward for t in trajectories if not t.metadata.get(UNLABELLED)]
        row = row.model_copy(update={"judge_cost": with_verdicts(row.judge_cost, trajectories)})
        wins, uncompared = (
            await self._compare_with_start(row, outcomes) if self._wins is not None else ({}, len(failures))
        )
        seconds = time.monotonic() - started
        comparable = uncompared <= MOST_ERRORS * len(self._scenarios)
        if not comparable:
            problem = f"{uncompared} of {len(self._scenarios)} questions failed, more than {MOST_ERRORS:.0%}"
            needed = "validation_metric=win_rate" if self._wins else f"stop_margin={self._settings.stop_margin}"
            if row.step == 0 and (self._wins or self._settings.stop_margin is not None):
                raise BadInput(
                    f"validation before the first GRPO step: {problem}, so {needed} has nothing to compare with; find the cause "
                    "in the warnings above and start the same command again"
                )
            self._warn(f"validation after step {row.step} is ignored: {problem}")
        return row.model_copy(
            update={
                "seconds": row.seconds + seconds,
                "validation_accuracy": statistics.fmean(judged) if judged and comparable else None,
                "validation_reward": statistics.fmean(rewards) if rewards and comparable else None,
                "validation_errors": uncompared,
                "validation_tokens": sum(int(t.metrics.get("sampled_tokens", 0)) for t in trajectories),
                "validation_seconds": seconds,
                **wins,
                **({} if comparable else {"validation_win_rate": None}),
            }
        )

    async def _compare_with_start(
        self, row: StepRecord, outcomes: Sequence[art.TrajectoryGroup | BaseException]
    ) -> tuple[dict[str, Any], int]:
        """Compare the answers with those before the first step.

        Return fields of the row and the number of questions left out.
        """
        assert self._wins is not None
        rollouts = [
            outcome.trajectories[0] if isinstance(outcome, art.TrajectoryGroup) else None for outcome in outcomes
        ]
        if row.step == 0:
            self._wins.begin(rollouts)
            return {"validation_win_rate": 0.5}, rollouts.count(None)
        with self._watch.call(f"comparison with the start after step {row.step}", turn=row.step):
            rate, uncompared, use = await self._wins.against_start(rollouts)
        if rate is None:
            problem = use.problem or "no question was answered by both"
            raise BadInput(
                f"validation after step {row.step}: {judge_name(self._settings)} made no comparison ({problem})"
            )
        return {
            "validation_win_rate": rate,
            "judge_requests": row.judge_requests + use.requests,
            "judge_cached": row.judge_cached + use.cached,
            "judge_cost": (row.judge_cost or 0.0) + use.cost,
        }, uncompared
