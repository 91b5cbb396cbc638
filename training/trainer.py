"""The training loop: warm start on demonstrations, then GRPO steps of gather -> score -> update -> validate -> record.

The history file is the run's state. A step is finished when its row is on disk; whatever a killed run left behind after its last complete
row (a checkpoint, a torn line) is removed on resume, so that the step runs again from where the row before it ended.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import art
from art.utils.iterate_dataset import iterate_dataset
from art.utils.output_dirs import get_model_dir, get_step_checkpoint_dir
from pydantic import BaseModel, ConfigDict, Field

from training.errors import BadInput
from training.judge import JudgeUse, judge_name
from training.monitors import Alert, find_alerts, step_signals
from training.scoring import Scorer, require_scoring
from training.settings import TrainerSettings
from training.stopping import best_row, hold_out, require_stop_rules, shown, stop_reason, validation_due
from training.task import Policy, Task

HISTORY_FILE = "training_history.jsonl"
JUDGE_CACHE = "judge_cache"


class StepRecord(BaseModel):
    """One row of the history. Times are seconds; `reward`, `accuracy` and `turns` are means over the step's rollouts."""

    model_config = ConfigDict(extra="allow")

    step: int
    phase: str
    checkpoint_step: int
    seconds: float
    reward: float | None = None
    reward_std: float | None = None
    """Mean over groups of the rewards' standard deviation within the group: without spread there is nothing to learn."""
    reward_error: float | None = None
    """Standard error of `reward`, from the spread between questions."""
    reward_right: float | None = None
    reward_wrong: float | None = None
    """Mean reward of the rollouts that were correct, and of those that were not."""
    accuracy: float | None = None
    turns: float | None = None
    groups_trained: int = 0
    groups_dropped: int = 0
    """Groups without rewards: fewer than two finished rollouts, or no usable reply of the judge."""
    rollout_errors: int = 0
    judge_requests: int = 0
    judge_cached: int = 0
    """Groups whose scores the judge had given before."""
    judge_seconds: float | None = None
    """Mean per request."""
    judge_cost: float | None = None
    """US dollars, as far as the judge's price is known."""
    sampled_tokens: int = 0
    tokens_per_rollout: float | None = None
    entropy: float | None = None
    """Nats per sampled token, estimated by the mean of their negative log-probabilities."""
    tokens_per_second: float | None = None
    """Sampled tokens per second of rollout time."""
    rollout_seconds: float | None = None
    update_seconds: float | None = None
    alerts: list[Alert] = Field(default_factory=list)
    validation_accuracy: float | None = None
    validation_reward: float | None = None
    """Means over the held-out questions, decoded greedily; `None` for steps that were not validated."""
    validation_errors: int = 0
    validation_tokens: int = 0
    validation_seconds: float | None = None
    """Part of `seconds`."""


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


class Progress:
    """What a run tells whoever watches it; the default tells nobody."""

    def stage(self, description: str, total: int) -> None:
        """A stage of `total` parts begins."""

    def advance(self) -> None:
        """One part of the stage is done."""

    def step(self, row: StepRecord) -> None:
        """A step is finished and on disk."""

    def stopped(self, reason: str) -> None:
        """There will be no further step."""


def read_history(path: Path) -> list[StepRecord]:
    """The complete rows of a history file, in order. A torn last line, left by a killed run, is not a row.

    Raises:
        BadInput: a line before the last cannot be read, or the steps have a gap.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows: list[StepRecord] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(StepRecord.model_validate_json(line))
        except ValueError as error:
            raise BadInput(f"{path}, line {number}: not a history row; remove the run folder to start again") from error
    if [row.step for row in rows] != list(range(rows[0].step, rows[0].step + len(rows)) if rows else []):
        raise BadInput(f"{path}: steps have a gap or repeat; remove the run folder to start again")
    return rows


def _append_row(path: Path, row: StepRecord) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(row.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def _rewind(model_dir: Path, rows: Sequence[StepRecord]) -> None:
    """Removes what was written after the last complete row: newer checkpoints, torn lines, ART's own rows."""
    last = rows[-1].checkpoint_step if rows else 0
    for folder in (model_dir / "checkpoints").glob("[0-9]*"):
        if not folder.name.isdigit() or int(folder.name) > last:
            shutil.rmtree(folder)
    for path, keep in (
        (model_dir / HISTORY_FILE, [row.model_dump_json() for row in rows]),
        (model_dir / "history.jsonl", _rows_up_to(model_dir / "history.jsonl", last)),
    ):
        if path.exists():
            beside = path.with_suffix(".tmp")
            beside.write_text("".join(f"{line}\n" for line in keep), encoding="utf-8")
            os.replace(beside, path)


def _rows_up_to(path: Path, checkpoint_step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            if json.loads(line).get("step", 0) <= checkpoint_step:
                kept.append(line)
        except json.JSONDecodeError:
            continue  # a torn line of a killed run
    return kept


def grpo_learning_rate(settings: TrainerSettings, step: int) -> float:
    """Of GRPO step `step` (the first is 1)."""
    # A fresh Adam moves every weight by the full rate, signal or noise: the first steps have to be small. And a few groups
    # are a noisy gradient: the last steps settle what the larger ones left.
    rise = min(1.0, step / settings.warm_up_steps)
    if settings.learning_rate_schedule == "constant":
        return settings.learning_rate * rise
    return settings.learning_rate * min(rise, (settings.max_steps - step + 1) / settings.max_steps)


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
    ) -> None:
        self.task = task
        self.model = model
        self.backend = backend
        self.settings = settings
        self.max_tokens = max_tokens
        self.progress = progress or Progress()

    async def run(self) -> TrainingRun:
        """Runs to `max_steps` or until a stop rule is met, going on after the last finished step if there is one."""
        require_stop_rules(self.settings)
        require_scoring(self.settings)
        await self.model.register(self.backend)
        model_dir = Path(get_model_dir(model=self.model, art_path=self.model.base_path))
        scorer = Scorer(self.task, self.settings, model_dir / JUDGE_CACHE)
        history_path = model_dir / HISTORY_FILE
        rows = read_history(history_path)
        _rewind(model_dir, rows)
        resumed_from = rows[-1].step if rows else None
        scenarios = list(self.task.train_scenarios())
        if not scenarios and self.settings.max_steps:
            raise BadInput("there are no train scenarios: check the data report for what was dropped and why")
        held_out: list[Any] = []
        if self.settings.validate_every:
            scenarios, held_out = hold_out(scenarios, self.settings.validation_questions)

        async def finish(row: StepRecord) -> None:
            if validation_due([*rows, row], self.settings):
                row = await self._validate(row, held_out)
            _append_row(history_path, row)
            rows.append(row)
            self.progress.step(row)
            self._prune(model_dir, rows)

        if not rows and self.settings.demonstrations:
            await finish(await self._warm_start(scenarios))
        first = rows[-1].step + 1 if rows else 1
        # ART shuffles each epoch by its number alone; the run's seed enters through the order that it starts from.
        random.Random(self.settings.seed).shuffle(scenarios)
        steps_per_epoch = math.ceil(len(scenarios) / self.settings.groups_per_step) if scenarios else 1
        for batch in iterate_dataset(
            scenarios,
            groups_per_step=self.settings.groups_per_step,
            num_epochs=math.ceil(self.settings.max_steps / steps_per_epoch),
            initial_step=first - 1,
            use_tqdm=False,
        ):
            if stop_reason(rows, self.settings):
                break
            await finish(await self._grpo_step(batch.step + 1, batch.items, rows, scorer))
        stopped = stop_reason(rows, self.settings)
        assert stopped is not None, "there are as many epochs as max_steps takes"
        best = best_row(rows, self.settings)
        if best is not None:
            value = f"{self.settings.validation_metric} {shown(best, self.settings)}"
            self.progress.stopped(f"{stopped}; best checkpoint: step {best.step}, validation {value}")
        elif rows and rows[-1].step < self.settings.max_steps:
            self.progress.stopped(stopped)
        chosen = best or (rows[-1] if rows else None)
        return TrainingRun(
            history=rows,
            checkpoint=self._checkpoint(model_dir, chosen.checkpoint_step if chosen else 0),
            checkpoint_of=chosen.step if chosen else 0,
            warm_start=self._checkpoint(model_dir, rows[0].checkpoint_step if rows and rows[0].phase == "warm_start" else 0),
            resumed_from=resumed_from,
            stopped=stopped,
        )

    async def _warm_start(self, scenarios: Sequence[Any]) -> StepRecord:
        started = time.monotonic()
        settings = self.settings
        demonstrations = self.task.demonstrations(scenarios, settings.demonstrations)
        if not demonstrations:
            raise BadInput("no demonstration could be made from the train scenarios: set demonstrations=0")
        trajectories: list[art.Trajectory] = []
        for epoch in range(settings.warm_start_epochs):
            order = list(demonstrations)
            random.Random(f"{settings.seed}-{epoch}").shuffle(order)
            trajectories += order
        batches = math.ceil(len(trajectories) / settings.warm_start_batch_size)
        config = art.TrainSFTConfig(
            learning_rate=warm_start_learning_rates(batches, settings.warm_start_learning_rate),
            batch_size=settings.warm_start_batch_size,
        )
        self.progress.stage(f"warm start on {len(demonstrations)} demonstrations", batches)
        losses: list[float] = []
        # What `model.train_sft` does, with a word to the progress after each batch.
        async for metrics in self.backend._train_sft(self.model, trajectories, config, {}):
            losses.append(float(metrics.get("loss/train", math.nan)))
            self.progress.advance()
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
            demonstrations=len(demonstrations),
            loss=loss,
        )

    async def _grpo_step(
        self, step: int, scenarios: Sequence[Any], before: Sequence[StepRecord], scorer: Scorer
    ) -> StepRecord:
        started = time.monotonic()
        groups, errors, judged_by = await self._gather(step, scenarios, scorer)
        gathered = time.monotonic()
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        spread = [statistics.pstdev([t.reward for t in group.trajectories]) for group in groups]
        trainable = [group for group, std in zip(groups, spread, strict=True) if std > 0]
        update: dict[str, float] = {}
        self.progress.stage(f"step {step}: update", 1)
        if trainable:
            result = await self.backend.train(
                self.model,
                trainable,
                learning_rate=grpo_learning_rate(self.settings, step),
                scale_rewards=self.settings.scale_rewards,
            )
            update = {key: float(value) for key, value in result.metrics.items() if key.startswith(("loss/", "train/"))}
        self.progress.advance()
        checkpoint_step = await self.model.get_step()
        await self.model.log(groups, split="train", step=checkpoint_step)
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
            groups_trained=len(trainable),
            groups_dropped=len(scenarios) - len(groups),
            judge_requests=judged_by.requests,
            judge_cached=judged_by.cached,
            judge_seconds=judged_by.seconds / judged_by.requests if judged_by.requests else None,
            judge_cost=judged_by.cost if judged_by.requests else None,
            rollout_errors=errors,
            sampled_tokens=sampled,
            tokens_per_second=sampled / (gathered - started),
            rollout_seconds=gathered - started,
            update_seconds=finished - gathered,
            **step_signals(groups),
            **update,
        )
        return row.model_copy(update={"alerts": find_alerts(row, groups, before, self.settings.alert_share)})

    async def _validate(self, row: StepRecord, scenarios: Sequence[Any]) -> StepRecord:
        """The row with what the policy after its step does with the held-out scenarios, decoded greedily."""
        started = time.monotonic()
        self.progress.stage(f"step {row.step}: validation", len(scenarios))
        policy = self._policy(temperature=0.0)
        slots = asyncio.Semaphore(self.settings.max_concurrent)

        async def one(scenario: Any) -> art.TrajectoryGroup:
            async with slots:
                try:
                    return await self.task.score(art.TrajectoryGroup([await self.task.rollout(policy, scenario)]))
                finally:
                    self.progress.advance()

        outcomes = await asyncio.gather(*(one(scenario) for scenario in scenarios), return_exceptions=True)
        groups = [outcome for outcome in outcomes if isinstance(outcome, art.TrajectoryGroup)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not groups or not isinstance(failure, Exception):
                raise failure
        await self.model.log(groups, split="val", step=row.checkpoint_step)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        judged = [float(t.metrics["correct"]) for t in trajectories if "correct" in t.metrics]
        if not judged and self.settings.validation_metric == "accuracy":
            raise BadInput("validation_metric=accuracy: this task does not say what is correct; use validation_metric=reward")
        seconds = time.monotonic() - started
        return row.model_copy(
            update={
                "seconds": row.seconds + seconds,
                "validation_accuracy": statistics.fmean(judged) if judged else None,
                "validation_reward": statistics.fmean(t.reward for t in trajectories),
                "validation_errors": len(failures),
                "validation_tokens": sum(int(t.metrics.get("sampled_tokens", 0)) for t in trajectories),
                "validation_seconds": seconds,
            }
        )

    def _policy(self, temperature: float) -> Policy:
        """The model after the latest step."""
        return Policy(
            base_url=self.model.inference_base_url or "",
            api_key=self.model.inference_api_key or "none",
            model=self.model.get_inference_name(),
            temperature=temperature,
            max_tokens=self.max_tokens,
        )

    async def _gather(
        self, step: int, scenarios: Sequence[Any], scorer: Scorer
    ) -> tuple[list[art.TrajectoryGroup], int, JudgeUse]:
        """Scored groups of this step's rollouts, the number of failed rollouts, and what the judge took.

        A failed rollout is left out, a group of fewer than two or one that the judge could not score too. Each group is scored
        as soon as it is complete, while others are still being played.

        Raises:
            BadInput: the judge could not score any group.
        """
        settings = self.settings
        policy = self._policy(settings.temperature)
        slots = asyncio.Semaphore(settings.max_concurrent)
        self.progress.stage(f"step {step}: rollouts", len(scenarios) * settings.rollouts_per_group)

        async def one_rollout(scenario: Any) -> art.Trajectory:
            async with slots:
                try:
                    return await self.task.rollout(policy, scenario)
                finally:
                    self.progress.advance()

        async def one_group(scenario: Any) -> tuple[art.TrajectoryGroup | None, list[BaseException], JudgeUse]:
            outcomes = await asyncio.gather(
                *(one_rollout(scenario) for _ in range(settings.rollouts_per_group)), return_exceptions=True
            )
            failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            for failure in failures:
                if not isinstance(failure, Exception):
                    raise failure
            finished = [outcome for outcome in outcomes if isinstance(outcome, art.Trajectory)]
            if len(finished) < 2:
                return None, failures, JudgeUse()
            group, use = await scorer.score(art.TrajectoryGroup(finished))
            return group, failures, use

        results = await asyncio.gather(*(one_group(scenario) for scenario in scenarios))
        groups = [group for group, _, _ in results if group is not None]
        failures = [failure for _, of_group, _ in results for failure in of_group]
        use = sum((of_group for _, _, of_group in results), JudgeUse())
        if not groups and use.problem:
            problem = f"{judge_name(settings)} scored none of {len(scenarios)} groups ({use.problem})"
            raise BadInput(f"step {step}: {problem}; the same command goes on after the last finished step")
        if not groups:
            raise failures[0]
        return groups, len(failures), use

    def _checkpoint(self, model_dir: Path, checkpoint_step: int) -> Path | None:
        folder = Path(get_step_checkpoint_dir(str(model_dir), checkpoint_step))
        return folder if checkpoint_step and folder.is_dir() else None

    def _prune(self, model_dir: Path, rows: Sequence[StepRecord]) -> None:
        """Keeps the warm start, the best validated checkpoint, the latest and the one before it."""
        kept = [rows[0], *rows[-2:]]
        if (best := best_row(rows, self.settings)) is not None:
            kept.append(best)
        keep = {row.checkpoint_step for row in kept}
        for folder in (model_dir / "checkpoints").glob("[0-9]*"):
            if folder.name.isdigit() and int(folder.name) not in keep:
                shutil.rmtree(folder)
