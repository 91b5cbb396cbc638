"""A sandbox service that is killed: rollouts are errors, nothing is left behind, and a new service is waited for."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tasks.coding.built_in import built_in_scenarios
from tasks.coding.errors import SandboxUnavailable
from tasks.coding.repl import Reply, ScriptedActor, play
from tasks.coding.sandbox_client import SandboxClient, require_sandbox
from tasks.coding.sandbox_service import sandbox_service
from tasks.coding.settings import CodingSettings
from tests.ports import free_port
from tests.sandbox.docker_daemon import require_bubblewrap
from tests.sandbox.hostile_programs import PROGRAMS
from tests.sandbox.test_hostile_programs import descendants
from training.errors import BadInput

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[3]
[SCENARIO] = built_in_scenarios(train=1, test=0, seed=1)


def start(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "sandbox", "--port", str(port)], cwd=ROOT)


def wait_for(url: str, service: subprocess.Popen[bytes]) -> None:
    while True:
        assert service.poll() is None, "the service ended"
        try:
            require_sandbox(url)
            return
        except BadInput:
            time.sleep(0.1)


class KillsTheService:
    """An actor that leaves a process behind; then somebody kills the service."""

    def __init__(self, service: subprocess.Popen[bytes]) -> None:
        self.service, self.below, self.cells = service, set[int](), 0

    async def reply(self, messages: list[dict]) -> Reply:
        if self.cells:
            self.below = descendants(self.service.pid)
            self.service.kill()
            self.service.wait()
        self.cells += 1
        text = PROGRAMS["background process"]
        return Reply(text=text, turn={"role": "assistant", "content": text})


def test_a_killed_service_is_an_error_and_leaves_nothing_and_the_next_one_is_waited_for() -> None:
    require_bubblewrap()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    first = start(port)
    wait_for(url, first)
    actor = KillsTheService(first)
    later: list[subprocess.Popen[bytes]] = []

    async def run() -> bool:
        async with SandboxClient(url, patience=600) as sandbox:
            with pytest.raises(SandboxUnavailable):
                await play(actor, SCENARIO, CodingSettings(), sandbox, max_tokens=64, system_prompt=None)
            threading.Timer(1.0, lambda: later.append(start(port))).start()
            oracle = ScriptedActor(SCENARIO.oracle_cells())
            return (await play(oracle, SCENARIO, CodingSettings(), sandbox, max_tokens=64, system_prompt=None)).correct

    try:
        assert asyncio.run(run())
        assert actor.below
        while any(Path(f"/proc/{pid}").exists() for pid in actor.below):
            time.sleep(0.1)
    finally:
        for service in (first, *later):
            service.kill()
            service.wait()


def answering(*answers: httpx.Response) -> tuple[SandboxClient, list[str]]:
    """A client of a service that gives these answers, and the paths that it asks for."""
    sandbox, left, asked = SandboxClient("http://sandbox", patience=600), list(answers), list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return left.pop(0)

    sandbox._http = httpx.AsyncClient(base_url=sandbox.base_url, transport=httpx.MockTransport(answer))
    return sandbox, asked


KEPT = httpx.Response(201, json={"snapshot": "a"})


def test_files_are_sent_again_to_a_service_that_was_restarted_meanwhile() -> None:
    gone = httpx.Response(404, json={"detail": "no such snapshot"})
    sandbox, asked = answering(KEPT, gone, KEPT, httpx.Response(201, json={"id": "b"}))
    assert asyncio.run(sandbox.open(SCENARIO)) == "b" and asked == ["/snapshots", "/workspaces"] * 2
    sandbox, asked = answering(KEPT, gone, KEPT, httpx.Response(200, json=[{"passed": True}]))
    assert asyncio.run(sandbox.test(SCENARIO, {})) == [True] and asked == ["/snapshots", "/tests"] * 2
    with pytest.raises(SandboxUnavailable, match="HTTP 404: no such snapshot"):
        asyncio.run(answering(*[KEPT, gone] * 3)[0].open(SCENARIO))


def test_changes_are_asked_for_again_where_the_machine_is_too_busy_for_them() -> None:
    changes = {"changed": {"target.py": "repaired"}, "deleted": []}
    busy = httpx.Response(503, headers={"Retry-After": "0.1"}, json={"detail": "this machine is too busy"})
    sandbox, asked = answering(busy, httpx.Response(200, json=changes))
    assert asyncio.run(sandbox.changes("a")) == changes and asked == ["/workspaces/a/changes"] * 2
    too_large = httpx.Response(422, json={"detail": "more than 500 files"})
    assert asyncio.run(answering(too_large)[0].changes("a")) == {"changed": {}, "deleted": []}
    sandbox, _ = answering(busy)
    sandbox._patience = -1
    with pytest.raises(SandboxUnavailable, match="HTTP 503: this machine is too busy"):
        asyncio.run(sandbox.changes("a"))


def test_a_proxy_may_answer_instead_of_the_service() -> None:
    date = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
    sandbox, asked = answering(httpx.Response(503, headers=date), KEPT, httpx.Response(502, json=["bad gateway"]))
    with pytest.raises(SandboxUnavailable, match="HTTP 502: .*bad gateway"):
        asyncio.run(sandbox.open(SCENARIO))
    assert asked == ["/snapshots", "/snapshots", "/workspaces"]


def test_nobody_else_takes_the_port_while_a_service_is_started_again() -> None:
    require_bubblewrap()
    before = set(psutil.Process().children())
    with sandbox_service(None, capacity=2) as url:
        [service] = set(psutil.Process().children()) - before
        service.kill()
        while service.is_running() and service.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", urlsplit(url).port or 0))
        assert require_sandbox(url), "the next service answers there"
