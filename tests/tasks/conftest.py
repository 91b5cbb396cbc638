"""A policy server that replies what a test tells it to, slowly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_server import running
from scripted_policy import ScriptedPolicy


@pytest.fixture
def slow_policy() -> Iterator[ScriptedPolicy]:
    server = ScriptedPolicy()
    server.seconds_per_reply = 2.0
    with running(server):
        yield server
