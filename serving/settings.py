"""Settings of the deployed service."""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from environment.home import HOME
from serving.bodies import MAX_TIMEOUT_SECONDS

LEAST_KEY_CHARS = 16
FEEDBACK = HOME / "outputs" / "feedback"


class AccessKey(BaseModel):
    """A key, known by its SHA-256 only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    inboxes: tuple[str, ...] | None = None
    """Addresses that this key may ask about; `None`: all."""


class ServingSettings(BaseModel):
    """Access and limits. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[AccessKey, ...] = ()
    keys_file: Path | None = None
    """YAML file of keys on the service's machine, such as a mounted secret, read when the service starts."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that clients may use, in addition to loopback and the address that it listens on. A name with a port
    (`agent.example:8443`) is valid at that port only.
    """
    max_waiting: int = Field(default=32, ge=0, le=1_000)
    """Questions that wait for a place; the service refuses more with 503."""
    max_wait: float = Field(default=30.0, gt=0, le=600)
    """Longest wait for a place."""
    timeout: float = Field(default=120.0, ge=1, le=MAX_TIMEOUT_SECONDS)
    """Time limit of a question that does not set its own."""
    result_seconds: float = Field(default=3600.0, gt=0)
    """How long the answer of a submitted question is kept."""
    max_results: int = Field(default=512, ge=1)
    """Maximum number of submitted questions that are kept, answered or not. One key may have at most half of them."""
    feedback_folder: Path = FEEDBACK

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            host_and_port(host)
        return hosts

    @model_validator(mode="after")
    def _one_source_of_keys(self) -> Self:
        if self.keys and self.keys_file:
            raise ValueError("keys and keys_file: set one of both")
        return self


def host_and_port(text: str) -> tuple[str, int | None]:
    """Return name and port of a value such as `agent.example:8443`, the port `None` if absent. Raises ValueError."""
    wrong = ValueError(
        f"'{text[:80]}' is not a host name; write a name or an address, or one with a port: agent.example:8443"
    )
    if any(character in text for character in "/@?#\\ \t\r\n"):
        raise wrong
    bare_ipv6 = text.count(":") > 1 and not text.startswith("[")
    try:
        parts = urlsplit(f"//[{text}]" if bare_ipv6 else f"//{text}")
        name, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not name:
        raise wrong
    return name.lower().removesuffix("."), port
