"""An HTTP server on loopback that answers what a test chooses."""

from __future__ import annotations

import gzip
import json
import socket
import sys
import threading
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class Request:
    """What a client asked for."""

    def __init__(self, method: str, target: str, headers: Message, body: bytes, connection: socket.socket) -> None:
        url = urlsplit(target)
        self.method, self.path, self.query = method, url.path, parse_qs(url.query)
        self.headers, self.body, self.connection = headers, body, connection

    def json(self) -> Any:
        """Return the body, or `None` without one."""
        packed = self.headers["Content-Encoding"] == "gzip"
        return json.loads(gzip.decompress(self.body) if packed else self.body) if self.body else None

    def hung_up(self) -> bool:
        """Return whether the client has closed the connection."""
        self.connection.setblocking(False)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        finally:
            self.connection.setblocking(True)


Answer = int | dict[str, Any] | bytes | tuple[int, dict[str, Any]] | Iterator[bytes] | None
"""A status alone, JSON, bytes, a status with JSON, the pieces of an event stream; without any, the connection is closed."""


class FakeServer(ThreadingHTTPServer):
    """Answers requests within a `with` block; a subclass says in `respond` with what."""

    daemon_threads = True
    request_queue_size = 128
    protocol = "HTTP/1.0"
    """By HTTP/1.1 connections stay open for further requests."""
    headers: dict[str, str] = {}
    """Sent with every answer."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def respond(self, request: Request) -> Answer:
        raise NotImplementedError

    def handle_error(self, request: object, client_address: object) -> None:
        """Print what went wrong, unless a client only hung up: stderr may be that of the command under test."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    @property
    def protocol_version(self) -> str:  # type: ignore[override]
        return self.server.protocol

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        answer = self.server.respond(Request(self.command, self.path, self.headers, body, self.connection))
        if answer is None:
            self.close_connection = True
            return
        status, content = (
            answer if isinstance(answer, tuple) else (answer, b"") if isinstance(answer, int) else (200, answer)
        )
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        if isinstance(content, (dict, bytes)):
            whole = json.dumps(content).encode() if isinstance(content, dict) else content
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)
            return
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        for piece in content:
            self.wfile.write(piece)
            self.wfile.flush()

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _respond

    def log_message(self, *arguments: object) -> None:
        """Keep the output of tests quiet."""
