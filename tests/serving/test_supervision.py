"""Supervisor and service start each other again. Both are played by small programs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from serving import supervision
from tests.ports import free_port
from tests.standstill import alive

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, sys, time
sys.path.insert(0, {root!r})
from serving import supervision

supervision.FIRST_PAUSE_SECONDS = 0.05
command = [sys.executable, __file__, *sys.argv[1:]]

def note(event):
    with open(sys.argv[1], "a") as log:
        log.write(json.dumps([event, os.getpid()]) + "\\n")

if supervision.is_service():
    if "fails" in sys.argv:
        sys.exit(7)
    accepting, say_ready = supervision.serve_supervised(command)
    note("serving")
    time.sleep("slow" in sys.argv)
    say_ready()
    accepting.settimeout(None)
    while True:
        connection, _ = accepting.accept()
        connection.recv(1024)
        connection.sendall(b"served by %d" % os.getpid())
        connection.close()
note("supervising")
import signal
signal.signal(signal.SIGTERM, lambda *_: None)  # as ZenML's daemon, which goes on after it
listening = supervision.listen("127.0.0.1", int(sys.argv[2]))
supervision.supervise(command, listening, show_state=lambda running: note("running" if running else "down"))
"""


class Supervised:
    """The program, and what its processes wrote down."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log = folder / "log"
        program = folder / "program.py"
        program.write_text(PROGRAM.format(root=str(ROOT)))
        self.port = free_port()
        self.process = subprocess.Popen([sys.executable, str(program), str(self.log), str(self.port), *words])

    def events(self) -> list[tuple[str, int]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def pids(self, event: str) -> list[int]:
        return [pid for name, pid in self.events() if name == event]

    def stop(self) -> None:
        for pid in {pid for _, pid in self.events()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    program = Supervised(tmp_path)
    wait_until(lambda: program.pids("running"))
    yield program
    os.kill(program.pids("supervising")[-1], signal.SIGTERM)
    wait_until(lambda: not alive(program.pids("serving")[-1]))
    program.stop()
    program.process.wait()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_service_is_started_again(supervised: Supervised) -> None:
    for times in (2, 3):
        os.kill(supervised.pids("serving")[-1], signal.SIGKILL)
        wait_until(lambda times=times: len(supervised.pids("running")) == times)
    assert len(set(supervised.pids("serving"))) == 3 and len(supervised.pids("down")) == 2
    assert len(supervised.pids("supervising")) == 1


def test_a_killed_supervisor_is_replaced(supervised: Supervised) -> None:
    first = supervised.pids("serving")[0]
    os.kill(supervised.process.pid, signal.SIGKILL)
    wait_until(lambda: len(supervised.pids("running")) == 2)
    assert not alive(first), "its address is the new service's"
    assert len(supervised.pids("supervising")) == 2


def test_a_stopped_service_is_not_restarted(tmp_path: Path) -> None:
    program = Supervised(tmp_path)
    wait_until(lambda: program.pids("running"))
    program.process.terminate()
    program.process.wait(300)
    wait_until(lambda: not alive(program.pids("serving")[0]))
    time.sleep(0.5)
    assert len(program.pids("supervising")) == 1


def test_a_service_that_never_served_is_not_started_again(tmp_path: Path) -> None:
    program = Supervised(tmp_path, "fails")
    assert program.process.wait(300) == 7
    assert len(program.events()) == 1


def ask(program: Supervised) -> bytes:
    with socket.create_connection(("127.0.0.1", program.port), timeout=60) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        answer = b""
        while part := client.recv(4096):
            answer += part
        return answer


def test_the_port_is_held_while_the_service_loads_or_is_started_again(tmp_path: Path) -> None:
    program = Supervised(tmp_path, "slow")
    wait_until(lambda: program.pids("serving"))
    if not program.pids("running"):
        answer = ask(program)
        assert answer.startswith((b"HTTP/1.1 503 ", b"served by"))
    for gone in ("serving", "supervising"):
        with pytest.raises(OSError):
            socket.create_server(("127.0.0.1", program.port))
        wait_until(lambda: ask(program).startswith(b"served by"))
        before = len(program.pids("serving"))
        os.kill(program.pids(gone)[-1], signal.SIGKILL)
        while len(program.pids("serving")) == before:
            with pytest.raises(OSError):
                socket.create_server(("127.0.0.1", program.port))
            time.sleep(0.02)
    wait_until(lambda: ask(program).startswith(b"served by"))
    os.kill(program.pids("supervising")[-1], signal.SIGTERM)
    wait_until(lambda: not alive(program.pids("serving")[-1]))
    program.stop()
    program.process.wait()


def test_a_service_that_is_starting_answers_with_the_body_of_all_errors() -> None:
    starting = threading.Event()
    starting.set()
    with supervision.listen("127.0.0.1", 0) as listening:
        turning = threading.Thread(target=supervision._turn_away, args=(listening, starting), daemon=True)
        turning.start()
        port = listening.getsockname()[1]
        answer = httpx.post(f"http://127.0.0.1:{port}/invoke", json={}, trust_env=False, timeout=60)
        starting.clear()
        time.sleep(0.2)  # the thread has left the socket
    assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
    problem = answer.json()
    assert set(problem) == {"success", "error", "request_id"} and problem["success"] is False
    assert "the service is starting" in problem["error"] and problem["request_id"] == answer.headers["x-request-id"]


def test_a_port_of_another_program_is_no_place_to_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError):
        supervision.listen("127.0.0.1", other.getsockname()[1])


def test_the_time_to_load_does_not_count_as_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0
        pauses: list[float] = []

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.pauses.append(seconds)
            if len(self.pauses) == 3:
                raise SystemExit

    class Dying:
        """Takes minutes to load, serves, and dies."""

        def __init__(self, *_: object) -> None:
            self.stop_channel = os.open(os.devnull, os.O_RDONLY)
            self.process = self

        def wait_until_ready(self) -> bool:
            clock.now += 300
            return True

        def wait(self) -> int:
            return 1

    clock = Clock()
    monkeypatch.setattr(supervision, "time", clock)
    monkeypatch.setattr(supervision, "_Child", Dying)
    monkeypatch.setattr(supervision.signal, "signal", lambda *_: None)
    monkeypatch.setattr(supervision, "_turn_away", lambda *_: None)
    with pytest.raises(SystemExit):
        supervision.supervise([], socket.socket(), show_state=lambda _: None)
    assert clock.pauses == [1, 2, 4]
