"""The limits of the tests that start processes: against hanging, never against a slow machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import standstill

pytestmark = pytest.mark.service


def test_a_process_that_does_nothing_is_killed_with_its_children(tmp_path: Path) -> None:
    # The child keeps the output open, so that nobody returns before it is gone.
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(AssertionError, match="it did nothing for"):
        standstill.run([sys.executable, "-c", parent], cwd=tmp_path, env=dict(os.environ), idle_seconds=3)


def test_a_process_that_computes_is_waited_for_longer_than_an_idle_one_may_last(tmp_path: Path) -> None:
    busy = "import time; end = time.monotonic() + 8\nwhile time.monotonic() < end: pass\nprint('done')"
    done = standstill.run([sys.executable, "-c", busy], cwd=tmp_path, env=dict(os.environ), idle_seconds=5)
    assert done.stdout == "done\n" and done.returncode == 0


def test_a_process_that_computes_for_ever_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdout=subprocess.PIPE, text=True)
    with pytest.raises(AssertionError, match="of processor time"), standstill.guarded(process, most_cpu_seconds=0.5):
        process.communicate()
