"""What can be set about the deployed service."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from serving.answer import MAX_TIMEOUT_SECONDS

LEAST_KEY_CHARS = 16
FEEDBACK = Path(__file__).resolve().parents[1] / "outputs" / "feedback"


class AccessKey(BaseModel):
    """A key that somebody may ask with, known by its SHA-256 only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    inboxes: tuple[str, ...] | None = None
    """Addresses that this key may ask about; `None`: all."""


class ServingSettings(BaseModel):
    """Limits and doors of the service. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[AccessKey, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    """Names by which the service is reached, besides the address that it listens on and those of loopback."""
    max_waiting: int = Field(default=32, ge=0, le=1_000)
    """Questions that wait for a place; further ones are turned away with 503."""
    max_wait: float = Field(default=30.0, gt=0, le=600)
    """Longest wait for a place."""
    timeout: float = Field(default=120.0, ge=1, le=MAX_TIMEOUT_SECONDS)
    """What the agent may take for a question that does not say."""
    result_seconds: float = Field(default=3600.0, gt=0)
    """How long the answer of a submitted question is kept."""
    max_results: int = Field(default=512, ge=1)
    """Answers of submitted questions that are kept or being made; half of them may be of one key."""
    feedback_folder: Path = FEEDBACK
