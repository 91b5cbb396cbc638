"""Resource limits of one workspace."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Limits of one workspace. Code that exceeds one is ended, and the observation says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wall_seconds: float = Field(default=10.0, gt=0, le=600, description="wall time of a cell")
    cpu_seconds: float = Field(default=5.0, gt=0, le=600, description="CPU time of a cell, all processes together")
    memory_bytes: int = Field(default=256 << 20, ge=64 << 20, description="memory of all processes together")
    processes: int = Field(
        default=16, ge=1, le=1024, description="maximum number of processes and threads of the untrusted code"
    )
    file_bytes: int = Field(default=8 << 20, ge=1024, description="size of one file")
    disk_bytes: int = Field(
        default=32 << 20,
        ge=1 << 20,
        description="size of all files, which are kept in memory, those in /tmp and /dev/shm included",
    )
    open_files: int = Field(default=64, ge=16, le=4096, description="open files per process")
    output_bytes: int = Field(
        default=4096, ge=256, le=1 << 20, description="output kept per cell: its beginning and its end"
    )

    def lasting(self, seconds: float | None) -> Limits:
        """Return these limits with another wall and CPU time per cell."""
        return self if seconds is None else self.model_copy(update={"wall_seconds": seconds, "cpu_seconds": seconds})
