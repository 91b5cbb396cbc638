"""A policy server that replies what a test tells it to, slowly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.policy import ScriptedPolicy


@pytest.fixture
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment that nobody answers at, and no exceptions from it."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def slow_policy() -> Iterator[ScriptedPolicy]:
    with ScriptedPolicy() as server:
        server.seconds_per_reply = 2.0
        yield server
