"""Errors of the sandbox."""

from __future__ import annotations


class NoIsolation(RuntimeError):
    """This machine cannot isolate untrusted code; the message says what to install."""


class Unusable(ValueError):
    """A request that cannot be met; the message says why."""


class WorkspaceLost(RuntimeError):
    """A workspace does not answer any more."""


class Starved(RuntimeError):
    """The machine is too busy to say what code does in the time that it has."""


class NotStarted(RuntimeError):
    """A workspace cannot be started at the moment; the message says why."""
