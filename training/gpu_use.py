"""What a run takes of the machine's GPUs, in hours and US dollars."""

from __future__ import annotations

from training.backends import gpus_occupied
from training.settings import TrainerSettings


def gpu_use(seconds: float, settings: TrainerSettings) -> dict[str, float | None]:
    """The fields `gpu_hours` and `gpu_cost` of a stretch of wall time. The GPUs are paid for while they wait, too."""
    gpus = gpus_occupied(settings)
    if not gpus:
        return {"gpu_hours": None, "gpu_cost": None}
    hours = gpus * seconds / 3600
    return {"gpu_hours": hours, "gpu_cost": None if settings.gpu_price is None else hours * settings.gpu_price}
