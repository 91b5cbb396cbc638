"""Limits of the health monitor, in a separate module because settings must load without heavy imports."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class HealthLimits(BaseModel):
    """Limits of the health monitor: it warns when one is exceeded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    child_processes: int = Field(
        default=200,
        ge=1,
        description="warn above this number of child processes; vLLM with its compile workers stays below 200",
    )
    disk_bytes: float = Field(
        default=2e9, ge=0, description="warn below this number of free bytes, twice what a run needs to start"
    )
