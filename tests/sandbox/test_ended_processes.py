"""Processes that the machine ends or does not start: nothing fails but what needs them, and it is said."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from sandbox.app import create_app
from sandbox.isolation import template_command
from sandbox.local import LocalRunner
from sandbox.settings import SandboxSettings
from tests.sandbox.docker_daemon import require_bubblewrap
from tests.sandbox.test_hostile_programs import PATIENT, descendants

pytestmark = pytest.mark.service

SECOND_FORK_FAILS = """
import os, socket, sys
sys.path.insert(0, "/")
from sandbox.inside.template import template
template_pid, fork, forks = os.getpid(), os.fork, []
def failing():
    if os.getpid() == template_pid:
        forks.append(1)
        if len(forks) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = failing
template(socket.socket(fileno=int(sys.argv[1])))
"""
"""A template process on a machine that once has no room for another process."""


def test_a_workspace_that_cannot_be_forked_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    require_bubblewrap()

    def command(control: int) -> list[str]:
        *words, program, handle = template_command(control)
        assert program == "/sandbox/inside"
        return [*words, "-c", SECOND_FORK_FAILS, handle]

    monkeypatch.setattr("sandbox.local.template_command", command)
    with TestClient(create_app(SandboxSettings(), LocalRunner())) as client:
        kept = client.post("/snapshots", json={"files": {"a.py": ""}}).json()
        first, second, third = [client.post("/workspaces", json=kept) for _ in range(3)]
        assert (first.status_code, second.status_code, third.status_code) == (201, 503, 201)
        assert second.headers["Retry-After"] and "Resource temporarily unavailable" in second.json()["detail"]
        place = f"/workspaces/{first.json()['id']}"
        assert client.post(f"{place}/cells", json={"code": "1 + 1"}).json()["output"] == "2\n"


def test_a_repl_that_is_killed_between_two_cells_is_restarted_and_it_is_said() -> None:
    require_bubblewrap()
    runner = LocalRunner()
    workspace = runner.open()
    before = descendants(os.getpid())
    assert workspace.exec("number = 1").ok
    workspace.changes()  # answered once the REPL is stopped
    [repl] = descendants(os.getpid()) - before
    os.kill(repl, signal.SIGKILL)  # as the kernel does that runs out of memory
    until = time.monotonic() + PATIENT
    while Path(f"/proc/{repl}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until, "the REPL has not ended"
        time.sleep(0.01)
    found = workspace.exec("number")
    assert found.restarted and "NameError" in found.output
    assert not workspace.exec("1").restarted
    runner.close()
