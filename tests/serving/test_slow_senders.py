"""Idle connections, and connections exhausted by one client, over real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest

from serving import http_protocol, middleware
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import GOOD, scripted_app, served


@pytest.fixture
def address(policy: MailPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 2.0)
    monkeypatch.setattr(middleware, "BODY_SECONDS", 2.0)
    with served(scripted_app(policy, tmp_path)) as url:
        yield "127.0.0.1", urlsplit(url).port or 0


pytestmark = [pytest.mark.service, pytest.mark.usefixtures("calm")]

HEAD = b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHo", HEAD])
def test_an_idle_connection_is_closed(address: tuple[str, int], sent: bytes) -> None:
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection(address, timeout=300)) for _ in range(100)]
        for connection in connections:
            connection.sendall(sent)
        with urlopen(f"http://127.0.0.1:{address[1]}/health", timeout=300) as response:
            assert response.status == 200
        for connection in connections:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "closed"


def test_a_body_that_does_not_come_is_answered(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=300) as connection:
        connection.sendall(HEAD + b"\r\n{")
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 408") and b"not complete" in answer


def test_a_used_connection_that_sends_half_a_head_is_closed(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=300) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /hea")
        while connection.recv(4096):
            pass


def test_who_does_not_read_is_cut_off(policy: MailPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "UNREAD_SECONDS", 1.0)
    monkeypatch.setattr(middleware, "READ_SECONDS", 0.5)
    with served(scripted_app(policy, tmp_path)) as url, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", urlsplit(url).port or 0))
        here = connection.getsockname()

        def held_by_the_service() -> bool:
            return any(other.raddr == here for other in psutil.Process().net_connections("tcp"))

        while not held_by_the_service():
            time.sleep(0.01)
        connection.sendall(b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 16)
        deadline = time.monotonic() + 300
        while held_by_the_service():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_request_that_was_sent_along_with_another_one_is_answered(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 1.0)
    probe = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(address, timeout=300) as connection:
        connection.sendall(probe + HEAD.replace(b"100", b"2") + b"Connection: close\r\n\r\n{")
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert b"HTTP/1.1 408" in answer


def health(address: tuple[str, int], source: str = "127.0.0.1") -> bytes:
    with socket.create_connection(address, timeout=300, source_address=(source, 0)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return connection.recv(4096)


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHo", HEAD + b"\r\n{"])
def test_one_client_cannot_use_up_all_connections(
    policy: MailPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "CONNECTIONS", 20)
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 60.0)
    with served(scripted_app(policy, tmp_path)) as url, contextlib.ExitStack() as opened:
        address = "127.0.0.1", urlsplit(url).port or 0
        other = opened.enter_context(socket.create_connection(address, timeout=300, source_address=("127.0.0.2", 0)))
        for _ in range(100):
            opened.enter_context(socket.create_connection(address, timeout=300)).sendall(sent)
        assert health(address).startswith(b"HTTP/1.1 200")
        assert health(address, "127.0.0.3").startswith(b"HTTP/1.1 200")
        other.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 200"), "a client with one connection keeps it"
        held = [c for c in psutil.Process().net_connections("tcp") if c.laddr == address and c.status == "ESTABLISHED"]
        assert len(held) <= 21


def test_questions_that_are_being_answered_keep_their_connections(
    policy: MailPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "CONNECTIONS", 4)
    policy.go_on.clear()
    body = json.dumps({"parameters": GOOD}).encode()
    head = b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with served(scripted_app(policy, tmp_path)) as url, contextlib.ExitStack() as opened:
        address = "127.0.0.1", urlsplit(url).port or 0
        asking = [opened.enter_context(socket.create_connection(address, timeout=300)) for _ in range(2)]
        for connection in asking:
            connection.sendall(head % len(body) + body)
        while len(policy.requests) < 2:
            time.sleep(0.01)
        for _ in range(20):
            opened.enter_context(socket.create_connection(address, timeout=300))
        assert health(address).startswith(b"HTTP/1.1 200")
        policy.go_on.set()
        for connection in asking:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_the_key_of_a_client(one: str, another: str, same: bool) -> None:
    assert (http_protocol.client_of(one) == http_protocol.client_of(another)) is same


@pytest.mark.parametrize(
    "sent",
    [
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"CONNECT mail.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET http://evil.example/inboxes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET //evil.example/%2e%2e HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /invoke/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /page/%00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /page/" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /page/..%2fapp.py HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /page/page.js HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: bytes=9-1,a-b\r\n\r\n",
        b"GET /inboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        b"GET /inboxes HTTP/1.1\r\n\r\n",
        b"GET /inboxes HTTP/1.0\r\n\r\n",
        b"GET /inboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n",
        HEAD.replace(b"Content-Length: 100", b"Content-Length: 2\r\nTransfer-Encoding: chunked") + b"\r\n0\r\n\r\n",
        HEAD.replace(b"Content-Length: 100", b"Content-Length: 2\r\nConnection: close") + b"\r\n{}GET /health",
        HEAD.replace(b"100", b"9") + b'\r\n{"a":1e9' + b"\x16\x03\x01" * 30_000,
        b"\x16\x03\x01\x02\x00" + b"\x00" * 500,
    ],
    ids=lambda sent: sent[:40].decode("latin-1").encode("unicode_escape").decode(),
)
def test_malformed_http_gets_a_4xx_or_no_response(address: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(address, timeout=300) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(sent)
        answer = connection.recv(4096)
        assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), answer
        assert answer.startswith(b"HTTP/1.1 200") is sent.startswith(b"GET /inboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nUp")
    assert health(address).startswith(b"HTTP/1.1 200")
