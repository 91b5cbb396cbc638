"""Errors of the coding task that are not bad input."""

from __future__ import annotations

from training.task import RolloutError


class SandboxUnavailable(RolloutError):
    """The sandbox service cannot be reached, has no capacity, or lost a workspace."""


class WorkspaceGone(SandboxUnavailable):
    """The sandbox works, but this workspace has ended."""


class SnapshotGone(SandboxUnavailable):
    """The sandbox works, but does not have the files to begin with any more."""
