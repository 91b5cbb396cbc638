"""Connections that are opened and not used, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest
from scripted_service import ScriptedPolicy, scripted_app, served

from serving import http_protocol, middleware


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(middleware, "BODY_SECONDS", 1.0)
    policy = ScriptedPolicy()
    with served(scripted_app(policy, tmp_path)) as url:
        yield "127.0.0.1", urlsplit(url).port or 0
    policy.shutdown()


HEAD = b"POST /invoke HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHo", HEAD])
def test_a_request_that_does_not_come_is_not_waited_for(address: tuple[str, int], sent: bytes) -> None:
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection(address, timeout=30)) for _ in range(100)]
        for connection in connections:
            connection.sendall(sent)
        with urlopen(f"http://127.0.0.1:{address[1]}/health", timeout=30) as response:
            assert response.status == 200
        for connection in connections:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "closed"


def test_a_body_that_does_not_come_is_answered(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(HEAD + b"\r\n{")
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 408") and b"not complete" in answer


def test_a_used_connection_that_sends_half_a_head_is_closed(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /hea")
        while connection.recv(4096):
            pass


def test_who_does_not_read_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "UNREAD_SECONDS", 1.0)
    monkeypatch.setattr(middleware, "READ_SECONDS", 0.5)
    policy = ScriptedPolicy()
    with served(scripted_app(policy, tmp_path)) as url, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", urlsplit(url).port or 0))
        here = connection.getsockname()

        def held_by_the_service() -> bool:
            return any(other.raddr == here for other in psutil.Process().net_connections("tcp"))

        connection.sendall(b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 16)
        while not held_by_the_service():
            time.sleep(0.01)
        deadline = time.monotonic() + 20
        while held_by_the_service():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    policy.shutdown()


def test_a_request_that_was_sent_along_with_another_one_is_answered(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.3)
    probe = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(probe + HEAD.replace(b"100", b"2") + b"Connection: close\r\n\r\n{")
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert b"HTTP/1.1 408" in answer
