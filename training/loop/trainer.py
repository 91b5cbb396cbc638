"""The training loop: warm start on demonstrations, then GRPO steps of gather -> score -> update -> validate -> record.

With `max_steps_off_policy`, later steps are gathered and scored during this one: see `training.loop.gathering`.
The history file is the state of the run, from which a killed run resumes: see `training.record.history`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import art
from art.metrics_taxonomy import TRAIN_GRADIENT_STEPS_KEY
from art.utils.output_dirs import get_model_dir
from pydantic import BaseModel

from training.backends import update_arguments
from training.errors import BadInput
from training.files import is_disk_full
from training.guard.alerts import find_alerts, step_signals
from training.guard.gpu_use import gpu_use
from training.guard.health import HealthMonitor
from training.guard.stall_watch import STALL_SECONDS, CallWatch
from training.guard.stopping import best_row, hold_out, require_stop_rules, shown, stop_reason, validation_due
from training.loop.batch import describe_batch
from training.loop.decisions import decision_figures, decisions_of, reward_spread
from training.loop.gathering import Gatherer
from training.loop.policy import current_policy
from training.loop.retention import prune_checkpoints, resumable_rows
from training.loop.selection import select_questions
from training.loop.updates import grpo_learning_rate, require_finite
from training.loop.validation import Validator
from training.loop.warm_start import warm_start
from training.record.history import (
    CONTINUED,
    HISTORY_FILE,
    UNTOUCHED,
    StepRecord,
    append_row,
    checkpoint_digest,
    checkpoint_folder,
    copy_adapter,
    is_intact,
)
from training.record.progress import NoProgress, Progress
from training.record.rollout_samples import sampled_for_log
from training.scoring.scorer import Scorer, require_scoring, with_verdicts
from training.scoring.win_rate import WinRate
from training.settings import TrainerSettings
from training.task import Policy, Task

JUDGE_CACHE = "judge_cache"


class TrainingRun(BaseModel):
    """A finished run: its rows and the folders of its adapters (`None`: the untouched base)."""

    history: list[StepRecord]
    checkpoint: Path | None
    """The best validated adapter; without validation the last one."""
    checkpoint_of: int
    """The step after which `checkpoint` was the policy."""
    warm_start: Path | None
    resumed_from: int | None
    """The last step before this call; `None` for a new run."""
    stopped: str
    """The reason why the run stopped."""
    folder: Path
    """Folder of history, checkpoints and trajectories."""


class Trainer:
    """Trains `model` on `task`, independent of the kind of task and backend."""

    def __init__(
        self,
        task: Task,
        model: art.TrainableModel,
        backend: Any,
        settings: TrainerSettings,
        *,
        max_tokens: int,
        progress: Progress | None = None,
        start: Path | None = None,
    ) -> None:
        """`start` is the folder of the adapter that a new run continues from."""
        self.task = task
        self.model = model
        self.backend = backend
        self.settings = settings
        self.max_tokens = max_tokens
        self.progress = progress or NoProgress()
        self.start = start
        self._model_dir = Path(get_model_dir(model=model, art_path=model.base_path))
        self._watch = CallWatch(STALL_SECONDS, self._warn)
        self._health = HealthMonitor(
            settings.health_seconds,
            settings.health,
            Path(model.base_path),
            lambda: self.model.inference_base_url,
            self._warn,
        )
        self._warnings: list[str] = []
        self._wins = (
            WinRate(settings, self._model_dir, self._model_dir / JUDGE_CACHE) if settings.measures_wins else None
        )

    async def run(self) -> TrainingRun:
        """Train until `max_steps` or a stop rule. Resumes after the last finished step.

        Raises:
            BadInput: settings contradict each other, there is nothing to train on, a judge or policy server does not answer,
                or the disk is full. Finished steps stay, and the next call resumes after them.
        """
        require_stop_rules(self.settings)
        require_scoring(self.settings)
        decisions = decisions_of(self.task, self.settings)
        scorer = Scorer(self.settings, self._model_dir / JUDGE_CACHE)
        try:
            with self._watch, self._health:
                return await self._run(scorer, decisions)
        except Exception as error:
            if is_disk_full(error):
                full = f"no space left on the disk of {self._model_dir}"
                raise BadInput(f"{full}: free some; the same command resumes after the last finished step") from error
            raise

    async def _run(self, scorer: Scorer, decisions: Sequence[str]) -> TrainingRun:
        history_path = self._model_dir / HISTORY_FILE
        rows = resumable_rows(self._model_dir, self._warn)
        resumed_from = rows[-1].step if rows else None
        if self.start is not None and not rows:
            copy_adapter(self.start, checkpoint_folder(self._model_dir, 0))
        scenarios = list(self.task.train_scenarios())
        if not scenarios and self.settings.max_steps:
            raise BadInput("there are no train scenarios: check the data report for what was dropped and why")
        held_out: list[Any] = []
        if self.settings.validates:
            scenarios, held_out = hold_out(scenarios, self.settings.validation_questions)
            if len(held_out) > len(scenarios):
                self._warn(
                    f"validation holds out {len(held_out)} of {len(held_out) + len(scenarios)} train questions: add "
                    "questions, or lower validation_questions"
                )
        if len(scenarios) < self.settings.groups_per_step and self.settings.max_steps:
            self._warn(
                f"groups_per_step={self.settings.groups_per_step}: a step asks all {len(scenarios)} questions to train on, "
                "because there are no more"
            )
        if self.settings.epochs is not None:
            in_epochs = self.settings.epochs * math.ceil(len(scenarios) / self.settings.groups_per_step)
            ends_earlier = in_epochs < self.settings.max_steps
            if ends_earlier:
                self.progress.note(
                    f"epochs={self.settings.epochs}: {in_epochs} steps instead of max_steps={self.settings.max_steps}"
                )
            self.settings = self.settings.model_copy(
                update={"max_steps": in_epochs} if ends_earlier else {"epochs": None}
            )
        selection = select_questions(self.task, scenarios, self.settings, decisions)
        reporting: dict[str, Any] = {"watch": self._watch, "progress": self.progress, "warn": self._warn}
        validator = Validator(
            self.task,
            held_out,
            self.model,
            self.settings,
            scorer=scorer,
            max_tokens=self.max_tokens,
            wins=self._wins,
            **reporting,
        )
        with self._watch.call("start of the backend"):
            await self.model.register(self.backend)

        async def finish(row: StepRecord, in_use: Collection[int] = ()) -> None:
            if validation_due([*rows, row], self.settings):
                row = await validator.validate(row)
            row = row.model_copy(update={"checkpoint_digest": self._digest(row, rows), "warnings": self._warnings})
            row = row.model_copy(update=gpu_use(row.seconds, self.settings))
            self._warnings = []
            append_row(history_path, row)
            rows.append(row)
            prune_checkpoints(self._model_dir, rows, self.settings, in_use)
            self.progress.step(row)  # may publish the folder

        if not rows and self.start is not None:
            await finish(StepRecord(step=0, phase=CONTINUED, checkpoint_step=0, seconds=0.0))
        elif not rows and self.settings.demonstrations:
            await finish(await warm_start(self.task, selection, self.model, self.backend, self.settings, **reporting))
        elif not rows and self.settings.validates:
            await finish(StepRecord(step=0, phase=UNTOUCHED, checkpoint_step=0, seconds=0.0))
        step = begun = rows[-1].step if rows else 0
        async with self._gatherer(scorer, await self.model.get_step(), decisions) as gatherer:
            while (stopped := stop_reason(rows, self.settings)) is None:
                step += 1
                last = min(step + self.settings.max_steps_off_policy, self.settings.max_steps)
                while begun < last:
                    begun += 1
                    gatherer.begin(begun, selection.for_step(begun, rows))
                row = await self._grpo_step(step, gatherer, rows)
                await finish(row, gatherer.checkpoints_in_use())
        if rows:
            prune_checkpoints(self._model_dir, rows, self.settings)
        intact = [row for row in rows if is_intact(self._model_dir, row)]
        best = best_row(intact, self.settings)
        if best != (planned := best_row(rows, self.settings)):
            assert planned is not None
            self._warn(f"the checkpoint of step {planned.step}, the best one, is damaged: taking the best intact one")
        if best is not None:
            value = f"{self.settings.validation_metric} {shown(best, self.settings)}"
            self.progress.stopped(stopped, f"best checkpoint: step {best.step}, validation {value}")
        elif rows and rows[-1].step < self.settings.max_steps:
            self.progress.stopped(stopped)
        chosen = best or (rows[-1] if rows else None)
        return TrainingRun(
            history=rows,
            checkpoint=self._checkpoint(chosen.checkpoint_step if chosen else 0),
            checkpoint_of=chosen.step if chosen else 0,
            warm_start=self._checkpoint(intact[0].checkpoint_step) if intact and intact[0].step == 0 else None,
            resumed_from=resumed_from,
            stopped=stopped,
            folder=self._model_dir,
        )

    def _digest(self, row: StepRecord, before: Sequence[StepRecord]) -> str | None:
        if before and before[-1].checkpoint_step == row.checkpoint_step:
            return before[-1].checkpoint_digest
        return checkpoint_digest(checkpoint_folder(self._model_dir, row.checkpoint_step))

    def _warn(self, sentence: str) -> None:
        self._warnings.append(sentence)
        self.progress.warning(sentence)

    def _gatherer(self, scorer: Scorer, checkpoint_step: int, decisions: Sequence[str]) -> Gatherer:
        newest = checkpoint_step, self._policy()
        return Gatherer(self.task, self.settings, scorer, self._watch, self.progress, self._warn, newest, decisions)

    async def _grpo_step(self, step: int, gatherer: Gatherer, before: Sequence[StepRecord]) -> StepRecord:
        started = time.monotonic()
        gathered = await gatherer.take(step)
        groups, judged_by = gathered.groups, gathered.judged_by
        update_started = time.monotonic()
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        spread = [reward_spread(group) for group in groups]
        trainable = [group for group, std in zip(groups, spread, strict=True) if std > self.settings.min_reward_std]
        if trainable and not any(row.groups_trained for row in before):
            scale, balance = self.settings.scale_rewards == "group", self.settings.advantage_balance
            self.progress.note(describe_batch(self.backend, self.model, trainable, scale=scale, balance=balance))
        update: dict[str, float] = {}
        self.progress.stage(f"step {step}: update", 1)
        if trainable:
            with self._watch.call(f"update of step {step}", turn=step):
                result = await self.backend.train(
                    self.model,
                    trainable,
                    learning_rate=grpo_learning_rate(self.settings, step, len(trainable)),
                    **update_arguments(self.settings),
                )
            update = {key: float(value) for key, value in result.metrics.items() if key.startswith(("loss/", "train/"))}
            require_finite(update, f"step {step}", "learning_rate")
            if not result.metrics.get(TRAIN_GRADIENT_STEPS_KEY, 1.0):
                trainable = []  # the backend left out everything, such as rollouts that are too long
        checkpoint_step = await self.model.get_step()
        self.progress.advance()
        gatherer.sample_from(checkpoint_step, self._policy())
        if kept := sampled_for_log(groups, self.settings.log_sample_rate, seed=f"{self.settings.seed}-{step}"):
            await self.model.log(kept, split="train", step=checkpoint_step)
        self.progress.rollouts(groups, split="train", step=step)
        finished = time.monotonic()
        sampled = sum(int(t.metrics.get("sampled_tokens", 0)) for t in trajectories)
        # Whether the rest of a group was played depends on how these ended, so only these are a fair sample.
        first = [group.trajectories[: self.settings.first_rollouts] for group in groups]
        right = [
            statistics.fmean(verdicts)
            for rollouts in first
            if (verdicts := [bool(t.metrics["correct"]) for t in rollouts if "correct" in t.metrics])
        ]
        row = StepRecord(
            step=step,
            phase="grpo",
            checkpoint_step=checkpoint_step,
            seconds=finished - started,
            reward=statistics.fmean(statistics.fmean(t.reward for t in rollouts) for rollouts in first),
            reward_std=statistics.fmean(spread),
            accuracy=statistics.fmean(right) if right else None,
            turns=statistics.fmean(t.metrics.get("turns", 0) for t in trajectories),
            questions=gathered.questions,
            groups_trained=len(trainable),
            decisions=decision_figures(groups, self.settings),
            groups_replaced=sum(question.replaces for question in gathered.questions),
            rollouts_sampled=len(trajectories),
            rollouts_trained=sum(len(group.trajectories) for group in trainable),
            groups_dropped=gathered.dropped,
            off_policy_steps=gathered.off_policy_steps,
            judge_requests=judged_by.requests,
            judge_cached=judged_by.cached,
            judge_seconds=judged_by.seconds / judged_by.requests if judged_by.requests else None,
            judge_cost=with_verdicts(judged_by.cost if judged_by.requests else None, trajectories),
            rollout_errors=gathered.failures,
            rollouts_too_long=self._too_long(step, trajectories),
            sampled_tokens=sampled,
            tokens_per_second=sampled / gathered.seconds,
            rollout_seconds=gathered.seconds,
            update_seconds=finished - update_started,
            **step_signals(groups, self.settings.first_rollouts),
            **update,
        )
        return row.model_copy(update={"alerts": find_alerts(row, groups, before)})

    def _too_long(self, step: int, trajectories: Sequence[art.Trajectory]) -> int:
        limit = self.settings.max_context
        too_long = sum(t.metrics.get("context_tokens", 0) > limit for t in trajectories)
        if too_long:
            self._warn(
                f"step {step}: {too_long} of {len(trajectories)} rollouts have more than max_context={limit} tokens and are not trained "
                "on; raise it, or lower max_turns, max_tokens, max_results, passage_chars or read_chars"
            )
        return too_long

    def _policy(self) -> Policy:
        return current_policy(self.model, self.settings, max_tokens=self.max_tokens)

    def _checkpoint(self, checkpoint_step: int) -> Path | None:
        folder = checkpoint_folder(self._model_dir, checkpoint_step)
        # Unless the run continues from an adapter, checkpoint 0 is at most the empty one that a backend needs.
        return folder if (checkpoint_step or self.start) and folder.is_dir() else None
