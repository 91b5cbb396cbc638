"""GPU hours and their cost in US dollars."""

from __future__ import annotations

from training.backends import gpus_occupied
from training.settings import TrainerSettings


def gpu_use(seconds: float, settings: TrainerSettings) -> dict[str, float | None]:
    """Return `gpu_hours` and `gpu_cost` of `seconds` of wall time. Idle GPUs count too."""
    gpus = gpus_occupied(settings)
    if not gpus:
        return {"gpu_hours": None, "gpu_cost": None}
    hours = gpus * seconds / 3600
    return {"gpu_hours": hours, "gpu_cost": None if settings.gpu_price is None else hours * settings.gpu_price}
