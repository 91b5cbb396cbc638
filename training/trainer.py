"""The training loop: warm start on demonstrations, then GRPO steps of gather -> score -> update -> validate -> record.

With `max_steps_off_policy` the next steps are gathered and scored while this one goes on: see `training.gathering`.
The history file is the run's state: see `training.history` for what a killed run goes on with.
"""

from __future__ import annotations

import asyncio
import errno
import math
import shutil
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import art
from art.utils.output_dirs import get_model_dir
from pydantic import BaseModel

from training.backends import update_arguments
from training.batch import describe_batch
from training.deadline import MovingDeadline
from training.downsampling import downsampled
from training.errors import BadInput
from training.gathering import MOST_ATTEMPTS, MOST_ERRORS, Gatherer, reward_spread, tell_failures
from training.gpu_use import gpu_use
from training.health import HealthMonitor
from training.history import (
    CHECKPOINTS,
    CONTINUED,
    HISTORY_FILE,
    UNTOUCHED,
    StepRecord,
    append_row,
    checkpoint_digest,
    checkpoint_folder,
    copy_adapter,
    is_intact,
    read_history,
    rewind,
    without_damaged_end,
)
from training.judge import judge_name
from training.monitors import find_alerts, step_signals
from training.progress import Progress
from training.replay import REPLAY, ReplayBuffer
from training.scoring import Scorer, require_scoring
from training.selection import select_questions
from training.settings import TrainerSettings
from training.stopping import best_row, hold_out, require_stop_rules, shown, stop_reason, validation_due
from training.task import UNLABELLED, Policy, Task
from training.trajectories import sampled_for_log
from training.watch import CallWatch
from training.win_rate import WinRate

JUDGE_CACHE = "judge_cache"
_RATE_FLOOR = 0.1
"""Of the learning rate, at the end of the cosine."""


class TrainingRun(BaseModel):
    """A finished run: its rows and where its adapters are (`None`: the untouched base)."""

    history: list[StepRecord]
    checkpoint: Path | None
    """The best validated one; without validation the last."""
    checkpoint_of: int
    """The step that it was the policy after."""
    warm_start: Path | None
    resumed_from: int | None
    """The step after which this call went on; `None` for a run from the start."""
    stopped: str
    """Why there was no further step, in words."""
    folder: Path
    """What ART and the trainer keep of the run: history, checkpoints, trajectories."""


def grpo_learning_rate(settings: TrainerSettings, step: int) -> float:
    """Of GRPO step `step` (the first is 1)."""
    # A fresh Adam moves every weight by the full rate, signal or noise: the first steps have to be small. And a few groups
    # are a noisy gradient: the last steps settle what the larger ones left. The floor keeps the last ones from being wasted.
    if step < settings.warm_up_steps:
        return settings.learning_rate * step / settings.warm_up_steps
    if settings.learning_rate_schedule == "constant":
        return settings.learning_rate
    done = (step - settings.warm_up_steps) / max(1, settings.max_steps - settings.warm_up_steps)
    return settings.learning_rate * (_RATE_FLOOR + (1 - _RATE_FLOOR) * (1 + math.cos(math.pi * done)) / 2)


def warm_start_learning_rates(batches: int, peak: float) -> list[float]:
    """Linear warm-up over the first tenth of the batches, then linear decay to a tenth of the peak."""
    rise = max(1, batches // 10)
    return [
        peak * min((index + 1) / rise, 1.0) * (1.0 - 0.9 * max(0, index - rise) / max(1, batches - rise))
        for index in range(batches)
    ]


class Trainer:
    """Trains `model` on `task`. Knows neither the task's world nor the backend behind the model."""

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
        self.progress = progress or Progress()
        self.start = start
        self._model_dir = Path(get_model_dir(model=model, art_path=model.base_path))
        self._watch = CallWatch(settings.stall_seconds, self._warn)
        self._health = HealthMonitor(
            settings.health_seconds, settings.health, Path(model.base_path), lambda: self.model.inference_base_url, self._warn
        )
        self._warnings: list[str] = []
        self._replay = ReplayBuffer(self._model_dir / REPLAY, settings.replay_steps)
        self._wins = WinRate(settings, self._model_dir, self._model_dir / JUDGE_CACHE) if settings.measures_wins else None

    async def run(self) -> TrainingRun:
        """Runs to `max_steps` or until a stop rule is met, going on after the last finished step if there is one.

        Raises:
            BadInput: settings that cannot work, nothing to train on, a judge or policy server that does not answer, a full
                disk. What is finished stays, and the next call goes on after it.
        """
        require_stop_rules(self.settings)
        require_scoring(self.settings)
        scorer = Scorer(self.task, self.settings, self._model_dir / JUDGE_CACHE)
        try:
            with self._watch, self._health:
                return await self._run(scorer)
        except Exception as error:
            if _disk_is_full(error):
                full = f"no space left on the disk of {self._model_dir}"
                raise BadInput(f"{full}: free some; the same command goes on after the last finished step") from error
            raise

    async def _run(self, scorer: Scorer) -> TrainingRun:
        history_path = self._model_dir / HISTORY_FILE
        rows = self._finished_rows(history_path)
        resumed_from = rows[-1].step if rows else None
        if self.start is not None and not rows:
            copy_adapter(self.start, checkpoint_folder(self._model_dir, 0))
        scenarios = list(self.task.train_scenarios())
        if not scenarios and self.settings.max_steps:
            raise BadInput("there are no train scenarios: check the data report for what was dropped and why")
        held_out: list[Any] = []
        if self.settings.validates:
            scenarios, held_out = hold_out(scenarios, self.settings.validation_questions)
        if self.settings.epochs is not None:
            in_epochs = math.ceil(self.settings.epochs * len(scenarios) / self.settings.groups_per_step)
            ends_earlier = in_epochs < self.settings.max_steps
            if ends_earlier:
                self.progress.note(f"epochs={self.settings.epochs}: {in_epochs} steps instead of max_steps={self.settings.max_steps}")
            self.settings = self.settings.model_copy(update={"max_steps": in_epochs} if ends_earlier else {"epochs": None})
        selection = select_questions(self.task, scenarios, self.settings)
        with self._watch.call("start of the backend"):
            await self.model.register(self.backend)

        async def finish(row: StepRecord, in_use: Collection[int] = ()) -> None:
            if validation_due([*rows, row], self.settings):
                row = await self._validate(row, held_out)
            row = row.model_copy(update={"checkpoint_digest": self._digest(row, rows), "warnings": self._warnings})
            row = row.model_copy(update=gpu_use(row.seconds, self.settings))
            self._warnings = []
            append_row(history_path, row)
            rows.append(row)
            self.progress.step(row)
            self._prune(rows, in_use)

        if not rows and self.start is not None:
            await finish(StepRecord(step=0, phase=CONTINUED, checkpoint_step=0, seconds=0.0))
        elif not rows and self.settings.demonstrations:
            await finish(await self._warm_start(selection.demonstrable()))
        elif not rows and (self.settings.stop_margin is not None or self._wins is not None):
            await finish(StepRecord(step=0, phase=UNTOUCHED, checkpoint_step=0, seconds=0.0))
        step = begun = rows[-1].step if rows else 0
        async with self._gatherer(scorer, await self.model.get_step()) as gatherer:
            while (stopped := stop_reason(rows, self.settings)) is None:
                step += 1
                last = min(step + self.settings.max_steps_off_policy, self.settings.max_steps)
                while begun < last:
                    begun += 1
                    gatherer.begin(begun, selection.for_step(begun, rows))
                row = await self._grpo_step(step, gatherer, rows)
                await finish(row, gatherer.checkpoints_in_use())
        if rows:
            self._prune(rows)
        intact = [row for row in rows if is_intact(self._model_dir, row)]
        best = best_row(intact, self.settings)
        if best != (planned := best_row(rows, self.settings)):
            assert planned is not None
            self._warn(f"the checkpoint of step {planned.step}, the best one, is damaged: the best that is left is taken")
        if best is not None:
            value = f"{self.settings.validation_metric} {shown(best, self.settings)}"
            self.progress.stopped(f"{stopped}; best checkpoint: step {best.step}, validation {value}")
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

    def _finished_rows(self, history_path: Path) -> list[StepRecord]:
        """The rows to go on after; everything later is removed."""
        written = read_history(history_path)
        rows = without_damaged_end(self._model_dir, written)
        if len(rows) < len(written):
            again = f"after step {rows[-1].step}" if rows else "from the start"
            self._warn(f"the checkpoint of step {written[-1].step} is damaged or gone: going on {again}")
        rewind(self._model_dir, rows)
        return rows

    def _digest(self, row: StepRecord, before: Sequence[StepRecord]) -> str | None:
        if before and before[-1].checkpoint_step == row.checkpoint_step:
            return before[-1].checkpoint_digest
        return checkpoint_digest(checkpoint_folder(self._model_dir, row.checkpoint_step))

    def _warn(self, sentence: str) -> None:
        self._warnings.append(sentence)
        self.progress.warning(sentence)

    async def _warm_start(self, scenarios: Sequence[Any]) -> StepRecord:
        started = time.monotonic()
        settings = self.settings
        demonstrations = self.task.demonstrations(scenarios, settings.demonstrations)
        if not demonstrations:
            raise BadInput("no demonstration could be made from the train scenarios: set demonstrations=0")
        trajectories = demonstrations * settings.warm_start_epochs
        batches = math.ceil(len(trajectories) / settings.warm_start_batch_size)
        config = art.TrainSFTConfig(
            learning_rate=warm_start_learning_rates(batches, settings.warm_start_learning_rate),
            batch_size=settings.warm_start_batch_size,
        )
        self.progress.stage(f"warm start on {len(demonstrations)} demonstrations", batches)
        losses: list[float] = []
        too_long = 0
        # What `model.train_sft` does, with a word to the progress after each batch.
        with self._watch.call("warm start"):
            async for metrics in self.backend._train_sft(self.model, trajectories, config, {}):
                _require_finite(metrics, "warm start", "warm_start_learning_rate")
                losses.append(float(metrics.get("loss/train", math.nan)))
                too_long = int(metrics.get("data/step_num_dropped_trajectories", 0)) // settings.warm_start_epochs
                if too_long == len(demonstrations):
                    raise BadInput(
                        f"warm start: all demonstrations are longer than max_context={settings.max_context} tokens; raise it, or lower "
                        "max_results or read_chars"
                    )
                self.progress.advance()
                self._watch.moves()
        if too_long:
            limit = f"max_context={settings.max_context}"
            self._warn(f"warm start: {too_long} of {len(demonstrations)} demonstrations are longer than {limit} tokens, and left out")
        checkpoint_step = await self.model.get_step()
        last = losses[-max(1, len(losses) // 10) :]
        loss = statistics.fmean(last) if last else math.nan
        await self.model.log(metrics={"loss/train": loss}, split="train", step=checkpoint_step)
        seconds = time.monotonic() - started
        return StepRecord(
            step=0,
            phase="warm_start",
            checkpoint_step=checkpoint_step,
            seconds=seconds,
            update_seconds=seconds,
            demonstrations=len(demonstrations) - too_long,
            loss=loss,
        )

    def _gatherer(self, scorer: Scorer, checkpoint_step: int) -> Gatherer:
        newest = checkpoint_step, self._policy(self.settings.temperature)
        return Gatherer(self.task, self.settings, scorer, self._watch, self.progress, self._warn, newest)

    async def _grpo_step(self, step: int, gatherer: Gatherer, before: Sequence[StepRecord]) -> StepRecord:
        started = time.monotonic()
        gathered = await gatherer.take(step)
        groups, judged_by = gathered.groups, gathered.judged_by
        update_started = time.monotonic()
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        spread = [reward_spread(group) for group in groups]
        subset, least = self.settings.train_rollouts_per_group, self.settings.min_reward_std
        varied = [group for group, std in zip(groups, spread, strict=True) if std > least]
        chosen = [downsampled(group, subset, self.settings.max_context) for group in varied]
        trainable = [group for group in chosen if len(group.trajectories) > 1 and reward_spread(group) > least]
        replayed = self._replay.recall(step) if trainable else []
        if trainable and not any(row.groups_trained for row in before):
            scale = self.settings.scale_rewards == "group"
            self.progress.note(describe_batch(self.backend, self.model, trainable, scale=scale))
        update: dict[str, float] = {}
        self.progress.stage(f"step {step}: update", 1)
        if trainable:
            with self._watch.call(f"update of step {step}", turn=step):
                result = await self.backend.train(
                    self.model,
                    [*trainable, *replayed],
                    learning_rate=grpo_learning_rate(self.settings, step),
                    **update_arguments(self.settings),
                )
            update = {key: float(value) for key, value in result.metrics.items() if key.startswith(("loss/", "train/"))}
            _require_finite(update, f"step {step}", "learning_rate")
        self._replay.remember(step, trainable)
        self.progress.advance()
        checkpoint_step = await self.model.get_step()
        gatherer.sample_from(checkpoint_step, self._policy(self.settings.temperature))
        if kept := sampled_for_log(groups, self.settings.log_sample_rate, seed=f"{self.settings.seed}-{step}"):
            await self.model.log(kept, split="train", step=checkpoint_step)
        self.progress.rollouts(groups, split="train", step=step)
        finished = time.monotonic()
        sampled = sum(int(t.metrics.get("sampled_tokens", 0)) for t in trajectories)
        judged = [float(t.metrics["correct"]) for t in trajectories if "correct" in t.metrics]
        row = StepRecord(
            step=step,
            phase="grpo",
            checkpoint_step=checkpoint_step,
            seconds=finished - started,
            reward=statistics.fmean(t.reward for t in trajectories),
            reward_std=statistics.fmean(spread),
            accuracy=statistics.fmean(judged) if judged else None,
            turns=statistics.fmean(t.metrics.get("turns", 0) for t in trajectories),
            questions=gathered.questions,
            groups_trained=len(trainable),
            groups_replaced=sum(question.replaces for question in gathered.questions),
            rollouts_sampled=len(trajectories),
            rollouts_trained=sum(len(group.trajectories) for group in trainable),
            rollouts_replayed=sum(len(group.trajectories) for group in replayed),
            groups_dropped=gathered.dropped,
            off_policy_steps=gathered.off_policy_steps,
            judge_requests=judged_by.requests,
            judge_cached=judged_by.cached,
            judge_seconds=judged_by.seconds / judged_by.requests if judged_by.requests else None,
            judge_cost=judged_by.cost if judged_by.requests else None,
            rollout_errors=gathered.failures,
            rollouts_too_long=self._too_long(step, trajectories),
            sampled_tokens=sampled,
            tokens_per_second=sampled / gathered.seconds,
            rollout_seconds=gathered.seconds,
            update_seconds=finished - update_started,
            **step_signals(groups),
            **update,
        )
        return row.model_copy(update={"alerts": find_alerts(row, groups, before, self.settings.alert_share)})

    def _too_long(self, step: int, trajectories: Sequence[art.Trajectory]) -> int:
        limit = self.settings.max_context
        too_long = sum(t.metrics.get("context_tokens", 0) > limit for t in trajectories)
        if too_long:
            self._warn(
                f"step {step}: {too_long} of {len(trajectories)} rollouts have more than max_context={limit} tokens and are not learnt "
                "from; raise it, or lower max_turns, max_tokens, max_results or read_chars"
            )
        return too_long

    async def _validate(self, row: StepRecord, scenarios: Sequence[Any]) -> StepRecord:
        """The row with what the policy after its step does with the held-out scenarios, decoded greedily.

        With more errors than `MOST_ERRORS`, after a second try, the row has no validation figures: the rest is no fair sample.
        """
        started = time.monotonic()
        policy = self._policy(temperature=0.0)
        slots = asyncio.Semaphore(self.settings.max_concurrent)  # of its own: what is gathered ahead may hold all others

        deadline = MovingDeadline(self.settings.step_timeout)

        async def one(number: int) -> art.TrajectoryGroup:
            try:
                async with deadline.limit(), slots:
                    with self._watch.call(f"validation on question {number + 1} after step {row.step}", turn=row.step):
                        return await self.task.score(art.TrajectoryGroup([await self.task.rollout(policy, scenarios[number])]))
            finally:
                deadline.move()

        async def ask(numbers: Sequence[int]) -> list[art.TrajectoryGroup | BaseException]:
            self.progress.stage(f"step {row.step}: validation", len(numbers))
            deadline.move()
            asked = [asyncio.ensure_future(one(number)) for number in numbers]
            for question in asked:
                question.add_done_callback(lambda _: self.progress.advance())
            return await asyncio.gather(*asked, return_exceptions=True)

        outcomes = await ask(range(len(scenarios)))
        for _ in range(MOST_ATTEMPTS - 1):
            failed = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
            for number, outcome in zip(failed, await ask(failed) if failed else (), strict=True):
                outcomes[number] = outcome
        groups = [outcome for outcome in outcomes if isinstance(outcome, art.TrajectoryGroup)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        ends = "" if groups else "none finished"
        tell_failures(failures, f"validation after step {row.step}", self._warn, ends_run=ends)
        await self.model.log(groups, split="val", step=row.checkpoint_step)
        self.progress.rollouts(groups, split="val", step=row.step)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        judged = [float(t.metrics["correct"]) for t in trajectories if "correct" in t.metrics]
        if not judged and self.settings.validation_metric == "accuracy":
            raise BadInput(
                "validation_metric=accuracy: this task does not say what is correct; use validation_metric=reward, or win_rate"
            )
        rewards = [t.reward for t in trajectories if not t.metadata.get(UNLABELLED)]
        wins, uncompared = await self._compare_with_start(row, outcomes) if self._wins is not None else ({}, len(failures))
        seconds = time.monotonic() - started
        comparable = uncompared <= MOST_ERRORS * len(scenarios)
        if not comparable:
            problem = f"{uncompared} of {len(scenarios)} questions failed, more than {MOST_ERRORS:.0%}"
            needed = "validation_metric=win_rate" if self._wins else f"stop_margin={self.settings.stop_margin}"
            if row.step == 0 and (self._wins or self.settings.stop_margin is not None):
                raise BadInput(
                    f"validation before the first GRPO step: {problem}, so {needed} has nothing to compare with; find the cause "
                    "in the warnings above and start the same command again"
                )
            self._warn(f"validation after step {row.step} counts for nothing: {problem}")
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
        """The row's fields that come from comparing a validation with the start's, and how many questions were not compared."""
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
            raise BadInput(f"validation after step {row.step}: {judge_name(self.settings)} compared nothing ({problem})")
        return {
            "validation_win_rate": rate,
            "judge_requests": row.judge_requests + use.requests,
            "judge_cached": row.judge_cached + use.cached,
            "judge_cost": (row.judge_cost or 0.0) + use.cost,
        }, uncompared

    def _policy(self, temperature: float) -> Policy:
        """The model after the latest step."""
        return Policy(
            base_url=self.model.inference_base_url or "",
            api_key=self.model.inference_api_key or "none",
            model=self.model.get_inference_name(),
            temperature=temperature,
            max_tokens=self.max_tokens,
        )

    def _checkpoint(self, checkpoint_step: int) -> Path | None:
        folder = checkpoint_folder(self._model_dir, checkpoint_step)
        # Without an adapter to continue from, checkpoint 0 is at most the empty one that a backend needs.
        return folder if (checkpoint_step or self.start) and folder.is_dir() else None

    def _prune(self, rows: Sequence[StepRecord], in_use: Collection[int] = ()) -> None:
        """Keeps the warm start, the best validated checkpoint, the latest and the one before it, should that be damaged."""
        keep = {*in_use, rows[0].checkpoint_step, *sorted({row.checkpoint_step for row in rows})[-2:]}
        if (best := best_row(rows, self.settings)) is not None:
            keep.add(best.checkpoint_step)
        for folder in (self._model_dir / CHECKPOINTS).glob("[0-9]*"):
            if folder.name.isdigit() and int(folder.name) not in keep:
                shutil.rmtree(folder)


def _require_finite(metrics: Mapping[str, float], where: str, rate: str) -> None:
    """Raise BadInput when an update has left weights that are no numbers: every later rollout would be noise."""
    for name in ("loss/train", "loss/grad_norm"):
        if not math.isfinite(value := float(metrics.get(name, 0.0))):
            raise BadInput(
                f"{where}: {name} is {value}, so the weights are useless and are not kept; lower {rate}, or run the same command "
                "to try the update again"
            )


def _disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        # safetensors and torch tell of it in words only.
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
