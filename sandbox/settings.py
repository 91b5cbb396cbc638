"""Settings of the sandbox service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sandbox.limits import Limits


class SandboxSettings(BaseModel):
    """Capacity, limits and isolation of the service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity: int = Field(default=32, ge=1, le=1024, description="maximum number of concurrent workspaces")
    max_waiting: int = Field(
        default=64, ge=0, le=10_000, description="requests that wait for a workspace; further ones get 503"
    )
    wait_seconds: float = Field(default=30.0, gt=0, le=3600, description="longest wait for a workspace before 503")
    spare: int = Field(
        default=32,
        ge=0,
        le=1024,
        description="local: workspaces started in advance, up to the capacity; each takes about 2 MB",
    )
    lifetime_seconds: float = Field(default=900.0, gt=0, le=86_400, description="age at which a workspace is destroyed")
    repository_bytes: int = Field(default=32 << 20, ge=1024, description="largest repository")
    cache_bytes: int = Field(default=256 << 20, ge=1024, description="memory for snapshots of repositories")
    runner: Literal["local", "docker", "kubernetes"] = Field(
        default="local",
        description="isolation of workspaces: bubblewrap on this machine, Docker, or pods of a cluster",
    )
    image: str = Field(
        default="python:3.12-slim", min_length=1, description="docker, kubernetes: image of a workspace that names none"
    )
    start_seconds: float = Field(
        default=600.0,
        gt=0,
        le=7200,
        description="docker, kubernetes: maximum time to start a workspace, including the download of its image",
    )
    test_seconds: float = Field(
        default=600.0, gt=0, le=7200, description="maximum wall and CPU time of a repository's own tests"
    )
    namespace: str = Field(default="default", min_length=1, description="kubernetes: namespace of the pods")
    pod_template: Path | None = Field(
        default=None, description="kubernetes: YAML file with further fields of each pod's `spec` and `container`"
    )
    allowed_hosts: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda names: [name.strip() for name in names.split(",")] if isinstance(names, str) else names),
    ] = Field(
        default=(),
        description="names by which clients reach the service, separated by commas; addresses and names without a dot "
        "are always accepted",
    )
    limits: Limits = Field(default_factory=Limits)
