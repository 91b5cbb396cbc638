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
    memory_share: float = Field(
        default=0.9, gt=0, le=1, description="warn when the run holds this share of its memory limit"
    )
    gpu_share: float = Field(
        default=0.98, gt=0, le=1, description="warn when this share of the GPU memory is in use; vLLM takes most of it"
    )
    free_share: float = Field(
        default=0.05, ge=0, lt=1, description="warn when less than this share of the machine's memory is free"
    )
    disk_bytes: float = Field(
        default=2e9, ge=0, description="warn below this number of free bytes, twice what a run needs to start"
    )
    stale_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="warn when a half-written file has not changed for this long; no checkpoint takes as long",
    )
    server_seconds: float = Field(
        default=10.0,
        gt=0,
        description="warn when the policy's server takes longer than this to answer, also during an update",
    )
