"""What the sandbox cannot do."""

from __future__ import annotations


class NoIsolation(RuntimeError):
    """Nothing on this machine confines untrusted code; the message says what to install."""


class Unusable(ValueError):
    """A request that cannot be met; the message says why."""


class WorkspaceLost(RuntimeError):
    """A workspace does not answer any more."""
