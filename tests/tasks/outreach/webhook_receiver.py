"""A receiver of notices on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tasks.outreach.webhook import SIGNATURE, signature

SECRET_VALUE = "secret"


class Receiver(ThreadingHTTPServer):
    """Answers as often as `garbage` says with something that is not HTTP, refuses as often as `refusals` says, then accepts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals = 0
        self.garbage = 0
        self.received: list[tuple[dict[str, Any], bool]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator[Self]:
        server = cls()
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.garbage:
            self.server.garbage -= 1
            self.wfile.write(b"garbage\r\n\r\n")
            return
        if self.server.refusals:
            self.server.refusals -= 1
            self.send_response(503)
        else:
            self.server.received.append((json.loads(body), self.headers[SIGNATURE] == signature(body, SECRET_VALUE)))
            self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output quiet."""
