"""The warm start: supervised fine-tuning on demonstrations before the first GRPO step."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import art

from training.errors import BadInput
from training.guard.stall_watch import CallWatch
from training.loop.selection import Selection
from training.loop.updates import require_finite, warm_start_learning_rates
from training.record.history import StepRecord
from training.record.progress import Progress
from training.settings import TrainerSettings
from training.task import Task

BATCH_SIZE = 2
"""Demonstrations per gradient step: a warm start has a hundred or so, and larger batches would leave it too few steps."""


async def warm_start(
    task: Task,
    selection: Selection,
    model: art.TrainableModel,
    backend: Any,
    settings: TrainerSettings,
    *,
    watch: CallWatch,
    progress: Progress,
    warn: Callable[[str], None],
) -> StepRecord:
    """Fine-tune `model` on demonstrations and return the row of step 0.

    The policy knows demonstrated questions: all rollouts of their groups are correct, so they teach nothing. If the questions
    that no GRPO step will ask yield enough demonstrations, only these are demonstrated.

    Raises:
        BadInput: there are no demonstrations, none fits into `max_context`, or a batch leaves weights that are not finite.
    """
    started = time.monotonic()
    scenarios, count = selection.unasked(), settings.demonstrations
    demonstrations = task.demonstrations(scenarios, count) if len(scenarios) >= count else []
    if len(demonstrations) < count:
        scenarios = selection.scenarios()
        demonstrations = task.demonstrations(scenarios, count)
    if not demonstrations:
        raise BadInput("no demonstration could be made from the train scenarios: set demonstrations=0")
    if len(demonstrations) < settings.demonstrations:
        warn(
            f"warm start: {len(demonstrations)} demonstrations instead of {settings.demonstrations}, because no more can be made "
            f"from the {len(scenarios)} train scenarios"
        )
    batches = math.ceil(len(demonstrations) / BATCH_SIZE)
    config = art.TrainSFTConfig(
        learning_rate=warm_start_learning_rates(batches, settings.warm_start_learning_rate),
        batch_size=BATCH_SIZE,
    )
    stage = f"warm start on {len(demonstrations)} demonstrations"
    progress.stage(stage, batches)
    losses: list[float] = []
    too_long = 0
    earlier = 0.0  # seconds that a killed run had spent on what this one continues
    # `model.train_sft` does the same, but reports no progress between batches.
    with watch.call("warm start"):
        async for metrics in backend._train_sft(model, demonstrations, config, {}):
            require_finite(metrics, "warm start", "warm_start_learning_rate")
            losses.append(float(metrics.get("loss/train", math.nan)))
            too_long = int(metrics.get("data/step_num_dropped_trajectories", 0))
            if too_long == len(demonstrations):
                raise BadInput(
                    f"warm start: all demonstrations are longer than max_context={settings.max_context} tokens; raise it, or lower "
                    "max_results, passage_chars or read_chars"
                )
            progress.advance()
            watch.moves()
            if "time/earlier_s" in metrics:
                earlier = float(metrics["time/earlier_s"])
                progress.note(f"the warm start continues after {len(losses)} of {batches} batches")
                progress.stage(f"rest of the {stage}", batches - len(losses))
    if too_long:
        limit = f"max_context={settings.max_context}"
        warn(
            f"warm start: {too_long} of {len(demonstrations)} demonstrations are longer than {limit} tokens, and left out"
        )
    checkpoint_step = await model.get_step()
    last = losses[-max(1, len(losses) // 10) :]
    loss = statistics.fmean(last) if last else math.nan
    await model.log(metrics={"loss/train": loss}, split="train", step=checkpoint_step)
    seconds = earlier + time.monotonic() - started
    return StepRecord(
        step=0,
        phase="warm_start",
        checkpoint_step=checkpoint_step,
        seconds=seconds,
        update_seconds=seconds,
        demonstrations=len(demonstrations) - too_long,
        loss=loss,
    )
