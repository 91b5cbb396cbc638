"""The link between a cell and the init of its workspace: whatever a cell sends over it, limits and deletion hold."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox.errors import WorkspaceLost
from sandbox.limits import Limits
from sandbox.local import LocalRunner
from tests.sandbox.isolated import isolated_runner
from tests.sandbox.test_hostile_programs import descendants, ended

pytestmark = pytest.mark.service

LIMITS = Limits(wall_seconds=1.0, cpu_seconds=20.0, memory_bytes=1 << 30, processes=16)
LINK = """
import os, struct, sys, threading, time
link = [int(f) for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}')
        and os.readlink(f'/proc/self/fd/{f}').startswith('socket')][0]
def children(count):
    for _ in range(count):
        if os.fork() == 0:
            while True: time.sleep(1)
"""
SLOW = {
    "reply byte by byte": LINK + "children(12)\nos.write(link, struct.pack('!I', 60000))\n"
    "while True: os.write(link, b' '); time.sleep(0.1)",
    "length byte by byte": LINK + "for byte in struct.pack('!I', 9000): os.write(link, bytes([byte])); time.sleep(0.9)",
    "half a reply": LINK + "children(12)\nos.write(link, struct.pack('!I', 60000) + b'{')\ntime.sleep(1000)",
}


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = isolated_runner(LIMITS)
    yield runner
    runner.close()


@pytest.mark.parametrize("name", SLOW)
def test_a_reply_that_comes_slowly_does_not_switch_off_the_limits(name: str, runner: LocalRunner) -> None:
    before = descendants(os.getpid())
    workspace = runner.open()
    seen = workspace.exec(SLOW[name])
    assert seen.ended == "wall time limit of 1 s" and seen.seconds < 20
    assert workspace.exec("1 + 1").output == "2\n"
    workspace.close()
    assert ended(before)


def test_a_deletion_ends_a_running_cell_and_everything_that_it_started() -> None:
    runner = LocalRunner(LIMITS.lasting(300))
    before = descendants(os.getpid())
    workspace = runner.open()
    with ThreadPoolExecutor(1) as thread:
        cell = thread.submit(workspace.exec, LINK + "children(12)\nwhile True: pass")
        until = time.monotonic() + 120
        while len(descendants(os.getpid()) - before) < 15 and time.monotonic() < until:
            time.sleep(0.01)
        workspace.kill()
        with pytest.raises(WorkspaceLost):
            cell.result(timeout=60)
    with pytest.raises(WorkspaceLost):
        workspace.exec("1")
    workspace.close()
    runner.close()
    assert ended(before)
