"""Hostile and careless clients of the sandbox's REST interface."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from sandbox import doors
from sandbox.limits import Limits
from sandbox.local import LocalRunner
from sandbox.settings import SandboxSettings
from tests.sandbox.isolated import isolated_runner
from tests.sandbox.served import served

pytestmark = pytest.mark.service

SETTINGS = SandboxSettings(
    capacity=1, max_waiting=0, repository_bytes=1 << 20, limits=Limits(wall_seconds=120, cpu_seconds=60)
)
SLEEP = "import time\ntime.sleep(1000)"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    settings = SETTINGS.model_copy(update=getattr(request, "param", {}))
    runner = isolated_runner(settings.limits)
    with served(settings, runner) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False, timeout=300) as client:
        yield client


def free(client: httpx.Client) -> bool:
    """Whether the only place is free again, within a minute."""
    until = time.monotonic() + 60
    while client.get("/health").json()["in_use"]:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def hung_up(url: str, path: str, body: object, after: float = 0.5) -> bytes:
    """Send a request, and close the connection. Return the answer if the service was quicker."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        time.sleep(after)
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return connection.recv(4096)
        return b""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8100"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "http://127.0.0.1:8100"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Host": "localhost:1"}, 201),
        ({"Host": "[::1]:8100"}, 201),
        ({"Host": "10.0.0.7"}, 201),
        ({"Host": "sandbox"}, 201),
    ],
)
def test_only_programs_that_know_its_name_use_it(client: httpx.Client, headers: dict[str, str], status: int) -> None:
    headers = {"Content-Type": "application/json", **headers}
    answer = client.post("/snapshots", content=b'{"files": {"a.py": ""}}', headers=headers)
    assert answer.status_code == status and (status == 201 or answer.json()["detail"])


@pytest.mark.parametrize("url", [{"allowed_hosts": ("box.example",)}], indirect=True)
def test_a_name_can_be_allowed(client: httpx.Client) -> None:
    assert client.get("/health", headers={"Host": "box.example:80"}).status_code == 200
    assert SandboxSettings(allowed_hosts="a.example, b.example").allowed_hosts == ("a.example", "b.example")  # type: ignore[arg-type]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/snapshots", "/tests", "/workspaces/none/cells"])
def test_a_body_that_is_too_large_is_not_read_whole(client: httpx.Client, path: str, chunked: bool) -> None:
    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(120):
            sent += 1
            yield b" " * (1 << 20)

    sent, before = 0, psutil.Process().memory_info().rss
    headers = {"Content-Type": "application/json"} | ({} if chunked else {"Content-Length": str(120 << 20)})
    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        assert client.post(path, content=pieces(), headers=headers).status_code == 413
    assert sent < 60 and psutil.Process().memory_info().rss < before + (200 << 20)
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"POST /tests HTTP/1.1\r\nHo", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /h"])
def test_a_head_has_a_deadline(url: str, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "HEAD_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=60) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass


def test_a_body_has_a_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "BODY_SECONDS", 0.5)
    head = b"POST /tests HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=60) as connection:
        connection.sendall(head)
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_client_that_hangs_up_leaves_its_place(url: str, client: httpx.Client) -> None:
    snapshot = client.post("/snapshots", json={"files": {}}).json()["snapshot"]
    hung_up(url, "/tests", {"snapshot": snapshot, "checks": [{"code": f"{SLEEP}\n1", "expected": "1"}] * 100})
    assert free(client)
    for after in (0.0, 0.005, 0.02, 1.0):
        if answer := hung_up(url, "/workspaces", {"snapshot": snapshot}, after):
            status, _, body = answer.partition(b"\r\n\r\n")
            if b" 201 " in status.splitlines()[0]:  # the client knows of it, so it has to end it
                assert client.delete(f"/workspaces/{json.loads(body)['id']}").status_code == 204
    id = None
    until = time.monotonic() + 60
    while id is None and time.monotonic() < until:
        id = client.post("/workspaces", json={"snapshot": snapshot}).json().get("id")
    hung_up(url, f"/workspaces/{id}/cells", {"code": SLEEP})
    begun = time.monotonic()
    assert client.delete(f"/workspaces/{id}").status_code == 204 and time.monotonic() - begun < 60
    assert free(client)


@pytest.mark.parametrize("url", [{"capacity": 1, "max_waiting": 1, "wait_seconds": 300}], indirect=True)
def test_a_client_that_hangs_up_leaves_the_queue(url: str, client: httpx.Client) -> None:
    snapshot = client.post("/snapshots", json={"files": {}}).json()["snapshot"]
    id = client.post("/workspaces", json={"snapshot": snapshot}).json()["id"]
    hung_up(url, "/workspaces", {"snapshot": snapshot})
    until = time.monotonic() + 60
    while client.get("/health").json()["waiting"] and time.monotonic() < until:
        time.sleep(0.05)
    assert client.get("/health").json()["waiting"] == 0
    client.delete(f"/workspaces/{id}")
    assert free(client)


@pytest.mark.parametrize("url", [{"lifetime_seconds": 1.0, "limits": Limits(wall_seconds=0.5)}], indirect=True)
def test_tests_end_with_the_lifetime_of_a_workspace(client: httpx.Client) -> None:
    snapshot = client.post("/snapshots", json={"files": {}}).json()["snapshot"]
    checks = [{"code": f"{SLEEP}\n1", "expected": "1"}] * 200
    begun = time.monotonic()
    verdicts = client.post("/tests", json={"snapshot": snapshot, "checks": checks}).json()
    assert time.monotonic() - begun < 60 and len(verdicts) == 200
    assert verdicts[-1] == {"passed": False, "found": "no value: the tests together take too long"}


@pytest.mark.parametrize(
    "body", ['{"code": NaN}', '{"code": "\\ud800"}', '{"\\ud800": 1}', '{"code": 1e999}', "[" * 9999]
)
@pytest.mark.parametrize("path", ["/snapshots", "/workspaces", "/workspaces/none/cells", "/tests", "/suites"])
def test_json_that_no_response_can_carry_is_refused_in_words(client: httpx.Client, path: str, body: str) -> None:
    for content in (body, f'{{"files": {{"\\udfff": "x"}}, "snapshot": {body}, "code": {body}, "checks": [{body}]}}'):
        answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 404, 422) and len(answer.json()["detail"]) < 500


def test_a_long_value_that_is_not_ascii_is_right(client: httpx.Client) -> None:
    snapshot = client.post("/snapshots", json={"files": {}}).json()["snapshot"]
    checks = [{"code": f"{mark!r} * 12_000", "expected": repr(mark * 12_000)} for mark in ("ä", "語", "😀")]
    verdicts = client.post("/tests", json={"snapshot": snapshot, "checks": checks}).json()
    assert all(verdict["passed"] for verdict in verdicts), verdicts


def test_a_cell_that_closes_its_output_does_not_keep_init_busy() -> None:
    runner = LocalRunner(Limits(wall_seconds=3, cpu_seconds=60))
    workspace = runner.open()
    init = max((process for process in psutil.Process().children(recursive=True)), key=lambda one: one.create_time())
    workspace.exec("1")
    before = sum(init.cpu_times()[:2])
    workspace.exec("import os, time\nos.close(1); os.close(2)\ntime.sleep(1000)")
    assert sum(init.cpu_times()[:2]) - before < 1.0
    workspace.close()
    runner.close()
