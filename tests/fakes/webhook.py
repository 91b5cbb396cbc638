"""A receiver of notices on loopback."""

from __future__ import annotations

from typing import Any

from tasks.outreach.webhook import SIGNATURE, signature
from tests.fakes.server import Answer, FakeServer, Request

SECRET_VALUE = "secret"


class Receiver(FakeServer):
    """Answers as often as `garbage` says with something that is not HTTP, refuses as often as `refusals` says, then accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0
        self.garbage = 0
        self.received: list[tuple[dict[str, Any], bool]] = []
        """Each notice, and whether its signature is genuine."""

    @property
    def url(self) -> str:
        return f"{super().url}/hook"

    def respond(self, request: Request) -> Answer:
        if self.garbage:
            self.garbage -= 1
            request.connection.sendall(b"garbage\r\n\r\n")
            return None
        if self.refusals:
            self.refusals -= 1
            return 503
        genuine = request.headers[SIGNATURE] == signature(request.body, SECRET_VALUE)
        self.received.append((request.json(), genuine))
        return 204
