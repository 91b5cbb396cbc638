"""Runners of confined processes, for tests that are skipped where nothing confines one."""

from __future__ import annotations

import pytest

from sandbox.errors import NoIsolation
from sandbox.limits import Limits
from sandbox.local import LocalRunner


def isolated_runner(limits: Limits | None = None) -> LocalRunner:
    """Return a runner, or skip the test."""
    runner = LocalRunner(limits or Limits())
    try:
        runner.require_isolation()
    except NoIsolation as error:
        runner.close()
        pytest.skip(str(error))
    return runner
