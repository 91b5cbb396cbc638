"""Errors of runs on a cluster, which the command line reports in one line."""


class RunFailed(RuntimeError):
    """A run failed on another machine; the message names the step, the reason and the log."""
