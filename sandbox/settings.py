"""Settings of the sandbox service."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from sandbox.limits import Limits


class SandboxSettings(BaseModel):
    """How much the service takes on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity: int = Field(default=32, ge=1, le=1024, description="workspaces at one time")
    max_waiting: int = Field(
        default=64, ge=0, le=10_000, description="requests that wait for a workspace; further ones get 503"
    )
    wait_seconds: float = Field(default=30.0, gt=0, le=3600, description="longest wait for a workspace before 503")
    lifetime_seconds: float = Field(default=900.0, gt=0, le=86_400, description="age at which a workspace is destroyed")
    repository_bytes: int = Field(default=32 << 20, ge=1024, description="largest repository")
    cache_bytes: int = Field(default=256 << 20, ge=1024, description="memory for snapshots of repositories")
    limits: Limits = Field(default_factory=Limits)
