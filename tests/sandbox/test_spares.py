"""Workspaces that are started in advance: they are opened without a fork, replaced, and ended with their runner."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sandbox.errors import NoIsolation
from sandbox.limits import Limits
from sandbox.local import LocalRunner
from sandbox.spares import Spares
from tests.sandbox.docker_daemon import require_bubblewrap
from tests.sandbox.test_hostile_programs import PATIENT, descendants, ended

pytestmark = pytest.mark.service

FILES = {"target.py": "def double(number):\n    return number + 1\n"}
SPARE = 3


def fill(runner: LocalRunner, count: int = SPARE) -> None:
    while runner.spares_ready < count:
        time.sleep(0.01)


@pytest.fixture
def runner() -> Iterator[LocalRunner]:
    """A runner whose spare workspaces have been started."""
    require_bubblewrap()
    runner = LocalRunner(Limits(wall_seconds=120, cpu_seconds=60), spare=SPARE)
    runner.open().close()
    fill(runner)
    yield runner
    runner.close()


def test_a_spare_workspace_is_opened_without_starting_one(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: Limits) -> socket.socket:
        raise NoIsolation("nothing can be started")

    monkeypatch.setattr(runner, "_start", refuses)
    opened = [runner.open({**FILES, "name.txt": str(number)}) for number in range(SPARE)]
    with pytest.raises(NoIsolation, match="nothing can be started"):
        runner.open(FILES)
    for number, workspace in enumerate(opened):
        assert workspace.exec("import target\ntarget.double(4)").output == "5\n"
        assert workspace.exec("open('name.txt').read()").output == f"'{number}'\n"
        workspace.write_files({"target.py": "repaired\n"})
        assert workspace.changes().changed == {"target.py": "repaired\n"}
        workspace.close()
    monkeypatch.undo()
    runner.open().close()  # the next request tries again
    fill(runner)


def test_those_that_were_opened_are_replaced_when_nobody_asks(runner: LocalRunner) -> None:
    opened = [runner.open(FILES) for _ in range(SPARE + 2)]
    fill(runner)
    for workspace in opened:
        assert workspace.exec("1 + 1").output == "2\n"


def test_spare_workspaces_that_died_are_passed_over(runner: LocalRunner) -> None:
    assert runner._template is not None
    killed = {runner._template.pid, *descendants(runner._template.pid)}
    for pid in killed:
        with suppress(ProcessLookupError):  # some die with their parent
            os.kill(pid, signal.SIGKILL)  # with the template, from which a new one has to be started as well
    runner._template.wait()
    workspace = runner.open(FILES)
    assert workspace.exec("import target\ntarget.double(4)").output == "5\n"
    fill(runner)
    until = time.monotonic() + PATIENT
    while not killed.isdisjoint(descendants(os.getpid())):
        assert time.monotonic() < until, "a process of the killed template is left"
        time.sleep(0.05)


def test_another_limit_needs_a_workspace_of_its_own(runner: LocalRunner) -> None:
    workspace = runner.open(FILES, seconds=0.2)
    assert workspace.exec("import time\ntime.sleep(1000)").ended == "wall time limit of 0.2 s"
    assert runner.spares_ready == SPARE


def test_nothing_is_left_when_the_runner_is_closed(runner: LocalRunner) -> None:
    assert runner._template is not None
    own, handles = {runner._template.pid, *descendants(runner._template.pid)}, len(os.listdir("/proc/self/fd"))
    assert len(own) > SPARE
    others = descendants(os.getpid()) - own
    runner.close()
    assert ended(others)
    assert len(os.listdir("/proc/self/fd")) <= handles - SPARE
    assert runner._spares.take() is None


def test_without_spares_no_thread_is_started() -> None:
    spares = Spares(0, socket.socket)
    assert spares.take() is None and spares._thread is None
    spares.close()
