"""When a run validates, when it stops and which checkpoint it returns.

Everything follows from the history rows and the settings, so that a resumed run decides as an uninterrupted one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from training.errors import BadInput
from training.record.history import CONTINUED, StepRecord
from training.settings import TrainerSettings

SHARES = ("accuracy", "win_rate")
"""Validation metrics between 0 and 1."""
COLLAPSED_STEPS = 3
"""Consecutive steps without a right rollout and without an update after which the policy counts as collapsed."""
ONCE_RIGHT = 0.2
"""Accuracy of some step before these. Below it, such steps may only have asked harder questions."""


def require_stop_rules(settings: TrainerSettings) -> None:
    """Raise `BadInput` for rules that contradict each other or can never apply, before anything is spent."""
    if settings.continue_from and settings.backend == "serverless":
        raise BadInput(
            "continue_from: backend=serverless begins with the base model, since its servers take no adapter from here: leave "
            "continue_from out, or train with backend=local or torch"
        )
    if settings.continue_from and not settings.max_steps:
        raise BadInput("max_steps=0 with continue_from: nothing would be trained, since such a run has no warm start")
    if not settings.demonstrations and not settings.max_steps:
        raise BadInput("demonstrations=0 and max_steps=0: nothing would be trained")
    if settings.epochs and settings.max_extra_groups:
        raise BadInput(
            f"epochs={settings.epochs} counts passes over all train questions, and with max_extra_groups={settings.max_extra_groups} "
            "there are none: set max_extra_groups=0, or max_steps instead of epochs"
        )
    every, plateau, target = settings.validate_every, settings.stop_plateau_steps, settings.stop_target
    margin = settings.stop_margin
    for name, value in (("stop_plateau_steps", plateau), ("stop_target", target), ("stop_margin", margin)):
        if value is not None and not settings.validates:
            raise BadInput(f"{name}={value} needs validation: set validate_every and max_steps, or leave {name} out")
    if plateau is not None and plateau < every:
        raise BadInput(
            f"stop_plateau_steps={plateau} is less than validate_every={every}: no validation could prevent the stop"
        )
    if plateau is not None and plateau > settings.max_steps:
        raise BadInput(
            f"stop_plateau_steps={plateau} is more than max_steps={settings.max_steps}: it could never take effect"
        )
    if target is not None and settings.validation_metric in SHARES and not 0 < target <= 1:
        metric = settings.validation_metric
        raise BadInput(
            f"stop_target={target}: {metric} is above 0 and at most 1; validation_metric=reward allows others"
        )
    if margin is not None and settings.validation_metric == "win_rate" and margin > 0.5:
        raise BadInput(f"stop_margin={margin}: a win rate begins at 0.5, so it rises by 0.5 at most; set it lower")
    if margin is not None and settings.validation_metric in SHARES and margin >= 1:
        raise BadInput(
            f"stop_margin={margin}: two shares differ by less than 1; validation_metric=reward allows others"
        )


def hold_out(scenarios: Sequence[Any], count: int) -> tuple[list[Any], list[Any]]:
    """Split off `count` scenarios, the same for every seed, so that runs are comparable. Return the rest and those, in order.

    Raises:
        BadInput: nothing would be left to train on.
    """
    if count >= len(scenarios):
        raise BadInput(
            f"validation_questions={count} leaves nothing to train on: there are {len(scenarios)} train scenarios; "
            "set it lower, or validate_every=0"
        )
    chosen = set(random.Random("validation").sample(range(len(scenarios)), count))
    kept = [scenario for index, scenario in enumerate(scenarios) if index not in chosen]
    return kept, [scenarios[index] for index in sorted(chosen)]


def validation_due(rows: Sequence[StepRecord], settings: TrainerSettings) -> bool:
    """Return whether to validate the last row: every `validate_every` steps, and at the end of the run."""
    if not settings.validates:
        return False
    last = rows[-1].step
    ends = last >= settings.max_steps or _collapsed(rows) or _budget_spent(rows, settings) is not None
    return ends or last % settings.validate_every == 0


def best_row(rows: Sequence[StepRecord], settings: TrainerSettings) -> StepRecord | None:
    """Return the row with the highest validation metric. Ties go to the higher reward, then to the earlier step.

    The reward breaks ties because two checkpoints often answer few questions equally well. The untouched base model is
    no checkpoint, so rows before the first update of a run from it do not count.
    """
    continued = bool(rows) and rows[0].phase == CONTINUED
    validated = [row for row in rows if _validated(row, settings) is not None and (row.checkpoint_step or continued)]
    return (
        max(validated, key=lambda row: (_validated(row, settings) or 0.0, row.validation_reward or 0.0))
        if validated
        else None
    )


def stop_reason(rows: Sequence[StepRecord], settings: TrainerSettings) -> str | None:
    """Return the reason to stop after the last row; `None` to continue."""
    last = rows[-1].step if rows else 0
    best = best_row(rows, settings)
    if best is not None and _validated(rows[-1], settings) is not None:
        name, value = settings.validation_metric, shown(best, settings)
        target, plateau = settings.stop_target, settings.stop_plateau_steps
        if target is not None and (_validated(best, settings) or 0.0) >= target:
            return f"validation {name} {value} reached stop_target={target}"
        start = _validated(rows[0], settings) if rows[0].step == 0 else None
        gain = (_validated(best, settings) or 0.0) - start if start is not None else -math.inf
        # Rounded: a gain from 50% to 60% is a margin of 0.1.
        if settings.stop_margin is not None and round(gain - settings.stop_margin, 9) >= 0 and best.step > 0:
            before = shown(rows[0], settings)
            return f"validation {name} {value} is above the {before} before the first step by stop_margin={settings.stop_margin}"
        # The best row may be a later one with the same metric and more reward.
        since = next(row.step for row in rows if _validated(row, settings) == _validated(best, settings))
        if plateau is not None and last - since >= plateau:
            return f"validation {name} was never above the {value} of step {since} in {last - since} steps"
    if _collapsed(rows):
        return (
            f"no rollout of steps {rows[-COLLAPSED_STEPS].step} to {last} was right and none taught anything, as after an update that was "
            "too large: start again with a lower learning_rate"
        )
    if last >= settings.max_steps:
        # The trainer lowers `max_steps` to the steps of `epochs`, or drops `epochs` when those are more.
        return (
            f"epochs={settings.epochs} done in {last} steps"
            if settings.epochs
            else f"max_steps={settings.max_steps} reached"
        )
    return _budget_spent(rows, settings)


def _collapsed(rows: Sequence[StepRecord]) -> bool:
    """Return whether a policy that was right before does nothing right any more and cannot learn: without an update it stays as it is."""
    before, recent = rows[:-COLLAPSED_STEPS], rows[-COLLAPSED_STEPS:]
    lost = all(row.accuracy == 0 and not row.groups_trained for row in recent)
    return lost and any((row.accuracy or 0.0) >= ONCE_RIGHT for row in before)


def shown(row: StepRecord, settings: TrainerSettings) -> str:
    """Format the validation metric of a row."""
    value = _validated(row, settings)
    return f"{value:.0%}" if settings.validation_metric in SHARES else f"{value:.3f}"


def _budget_spent(rows: Sequence[StepRecord], settings: TrainerSettings) -> str | None:
    seconds = sum(row.seconds for row in rows)
    tokens = sum(row.sampled_tokens + row.validation_tokens for row in rows)
    if settings.stop_seconds is not None and seconds >= settings.stop_seconds:
        return f"{seconds:,.0f} s spent of stop_seconds={settings.stop_seconds:g}"
    cost = sum(row.judge_cost or 0.0 for row in rows)
    if settings.stop_cost is not None and cost >= settings.stop_cost:
        return f"the judge cost {cost:.2f} USD of stop_cost={settings.stop_cost:g}"
    if settings.stop_tokens is not None and tokens >= settings.stop_tokens:
        return f"{tokens:,} tokens sampled of stop_tokens={settings.stop_tokens}"
    return None


def _validated(row: StepRecord, settings: TrainerSettings) -> float | None:
    measured = {
        "accuracy": row.validation_accuracy,
        "reward": row.validation_reward,
        "win_rate": row.validation_win_rate,
    }
    return measured[settings.validation_metric]
