"""What can go wrong besides bad input."""

from __future__ import annotations


class SandboxUnavailable(RuntimeError):
    """The sandbox service cannot be reached, has no capacity, or lost a workspace."""
