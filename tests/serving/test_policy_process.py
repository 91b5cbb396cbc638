"""The policy server as a process: start, detection of its death, restart."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving import policy_process
from serving.policy_process import PolicyProcess
from tests.standstill import alive
from training.errors import BadInput

pytestmark = pytest.mark.service

SERVER = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass

HTTPServer.allow_reuse_address = True
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(json.dumps({"base_url": f"http://127.0.0.1:{server.server_port}/v1", "capacity": 3}), flush=True)
sys.stdin.read()
"""


HANGS = """
import subprocess, sys, time
from pathlib import Path

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_process, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(policy_process, "FIRST_PAUSE_SECONDS", 0.05)


@pytest.fixture
def server() -> Iterator[PolicyProcess]:
    process = PolicyProcess(lambda port: [sys.executable, "-c", SERVER, str(port)])
    yield process
    process.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_server_is_back_at_its_address(server: PolicyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_process, "FIRST_PAUSE_SECONDS", 2.0)  # time to see that it is away
    first, address = server.pid, server.base_url
    assert server.healthy() and server.capacity == 3
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not server.healthy())
    wait_until(lambda: server.healthy())
    assert server.pid != first and server.base_url == address and server.restarts == 1


def test_a_server_that_hangs_is_replaced(server: PolicyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_process, "HUNG_SECONDS", 0.3)
    monkeypatch.setattr(policy_process, "PROBE_TIMEOUT_SECONDS", 0.1)
    first = server.pid
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: server.restarts >= 1 and server.healthy())  # a slow start may hang too
    assert server.pid != first


def test_the_server_ends_with_its_parent(server: PolicyProcess) -> None:
    process = server._process
    server.close()
    assert process.poll() is not None
    time.sleep(0.3)
    assert not server.healthy() and server.restarts == 0


def test_an_error_reported_by_the_server_is_bad_input() -> None:
    says = "import json; print(json.dumps({'error': 'the adapter does not fit'}))"
    with pytest.raises(BadInput, match="does not fit"):
        PolicyProcess(lambda port: [sys.executable, "-c", says])
    with pytest.raises(RuntimeError, match="status 3"):
        PolicyProcess(lambda port: [sys.executable, "-c", "raise SystemExit(3)"])


def test_a_server_that_talks_nonsense_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A malformed status line must not end the watch."""
    monkeypatch.setattr(policy_process, "HUNG_SECONDS", 0.3)
    nonsense = SERVER.replace("self.send_response(200)", "self.wfile.write(b'nonsense\\r\\n\\r\\n'); return")
    process = PolicyProcess(lambda port: [sys.executable, "-c", nonsense, str(port)])
    try:
        wait_until(lambda: process.restarts >= 1)
    finally:
        process.close()


def test_a_server_that_hangs_while_it_loads_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child, starts = tmp_path / "child", 0

    def command(port: int) -> list[str]:
        nonlocal starts
        starts += 1
        if starts != 2:
            monkeypatch.setattr(policy_process, "START_SECONDS", 600.0)
            return [sys.executable, "-c", SERVER, str(port)]
        monkeypatch.setattr(policy_process, "START_SECONDS", 5.0)
        return [sys.executable, "-c", HANGS, str(child)]

    server = PolicyProcess(command)
    try:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: starts == 3 and server.healthy())
        wait_until(lambda: not child.exists() or not alive(int(child.read_text())))
    finally:
        server.close()


def test_closing_ends_a_server_that_is_loading(tmp_path: Path) -> None:
    child, starts = tmp_path / "child", 0

    def command(port: int) -> list[str]:
        nonlocal starts
        starts += 1
        return [sys.executable, "-c", SERVER if starts == 1 else HANGS, str(port) if starts == 1 else str(child)]

    server = PolicyProcess(command)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: child.exists() and child.read_text())
    server.close()
    assert not server._thread.is_alive()
    wait_until(lambda: not alive(int(child.read_text())))
