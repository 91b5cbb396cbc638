"""Learning rates of the updates, and the check of their results."""

from __future__ import annotations

import math
from collections.abc import Mapping

from training.errors import BadInput
from training.settings import TrainerSettings

_RATE_FLOOR = 0.1
"""Learning rate at the end of the cosine schedule, as a share of `learning_rate`. It keeps the last steps useful."""


def grpo_learning_rate(settings: TrainerSettings, step: int, groups: int) -> float:
    """Return the learning rate of GRPO step `step` (the first is 1), whose update learns from `groups` groups."""
    # The moments of a fresh Adam are noise, so the first steps are small.
    rate = settings.learning_rate * min(1.0, step / settings.warm_up_steps)
    if settings.learning_rate_schedule == "constant":
        return rate
    # Adam moves every weight by about the full rate, however small and noisy the gradient is. Few groups make a noisy one.
    rate *= min(1.0, groups / settings.groups_per_step)
    done = max(0, step - settings.warm_up_steps) / max(1, settings.max_steps - settings.warm_up_steps)
    return rate * (_RATE_FLOOR + (1 - _RATE_FLOOR) * (1 + math.cos(math.pi * done)) / 2)


def warm_start_learning_rates(batches: int, peak: float) -> list[float]:
    """Return one rate per batch: linear warm-up over the first tenth, then linear decay to a tenth of `peak`."""
    rise = max(1, batches // 10)
    return [
        peak * min((index + 1) / rise, 1.0) * (1.0 - 0.9 * max(0, index - rise) / max(1, batches - rise))
        for index in range(batches)
    ]


def require_finite(metrics: Mapping[str, float], where: str, rate: str) -> None:
    """Raise BadInput if the loss or gradient norm of an update is not finite: its weights would produce noise."""
    for name in ("loss/train", "loss/grad_norm"):
        if not math.isfinite(value := float(metrics.get(name, 0.0))):
            raise BadInput(
                f"{where}: {name} is {value}, so the weights are useless and are not kept; lower {rate}, or run the same command "
                "to try the update again"
            )
