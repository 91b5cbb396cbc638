"""A policy server that replies what a test tells it to, slowly."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from scripted_policy import ScriptedPolicy


@pytest.fixture
def slow_policy() -> Iterator[ScriptedPolicy]:
    server = ScriptedPolicy()
    server.seconds_per_reply = 2.0
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
