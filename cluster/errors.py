"""Errors of runs on a cluster that the command line turns into one line."""


class RunFailed(RuntimeError):
    """A run failed on another machine; the message names the step, the reason and where to look."""
