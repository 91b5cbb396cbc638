"""Ports for servers that a test starts in other processes."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return an unused port of the loopback interface.

    It is none that the system gives to outgoing connections, or ZenML to the next deployment, before the server has it.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
