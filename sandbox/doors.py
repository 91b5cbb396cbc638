"""What every request passes first: checks of its sender and its body, and a watch for clients that hang up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import ip_address

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
BODY_SECONDS = 60.0
_HEADER_ONCE = ("host", "origin", "content-type")


class Doors:
    """Refuse web pages, and bodies that are not JSON, too large or too slow. Cancel the request of a client that hangs up.

    A page whose name was made to point here (DNS rebinding) has a name with a dot in `Host`. Addresses, names without a
    dot and `hosts` are accepted.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], snapshot_bytes: int, body_bytes: int) -> None:
        """Bodies of `/snapshots` have at most `snapshot_bytes`, others `body_bytes`."""
        self.app, self._hosts = app, {host.lower() for host in (*hosts, socket.gethostname(), socket.getfqdn())}
        self._snapshot_bytes, self._body_bytes = snapshot_bytes, body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self._snapshot_bytes if scope["path"] == "/snapshots" else self._body_bytes
        refusal, body = self._refusal(Headers(scope=scope), scope["method"], most), None
        if refusal is None:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await _read(receive, most)
            except TimeoutError:
                refusal = 408, f"the body was not complete after {BODY_SECONDS:g} s"
            except ValueError:
                refusal = 413, f"the body has more than {most:,} bytes"
            else:
                if body is None:
                    return
        if refusal is not None:
            status, detail = refusal
            await JSONResponse({"detail": detail}, status, {"Connection": "close"})(scope, receive, send)
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await asyncio.get_running_loop().create_future()

        answering = asyncio.ensure_future(self.app(scope, replay, send))
        leaving = asyncio.ensure_future(receive())  # after the body only a disconnect can come
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            answering.result()

    def _refusal(self, headers: Headers, method: str, most: int) -> tuple[int, str] | None:
        if twice := next((name for name in _HEADER_ONCE if len(headers.getlist(name)) > 1), None):
            return 400, f"the header {twice} is there more than once"
        if not self._known(headers.get("host", "")):
            return 421, "this service is not known by the name in Host: add it to allowed_hosts"
        if "origin" in headers:
            return 403, "web pages may not use this service"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        if method in ("POST", "PUT") and kind != "application/json" and not empty:
            return 415, "send the body as application/json"
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            return 413, f"the body has more than {most:,} bytes"
        return None

    def _known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.lower().removeprefix("[").removesuffix("]")
        try:
            ip_address(name)
        except ValueError:
            return name in self._hosts or (name != "" and "." not in name)
        return True


async def _read(receive: Receive, most: int) -> bytes | None:
    """Return the body; `None` if the client hangs up. Raises ValueError if it is too large."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise ValueError
        more = message.get("more_body", False)
    return bytes(body)


class HeadDeadline(H11Protocol):
    """Close a connection whose first request, or the head of a later one, is not complete after `HEAD_SECONDS`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self.cycle is not None and self.cycle.response_complete and self._deadline is None:
            self._expect_head()  # a used connection may wait, but not within a head
        super().data_received(data)

    def handle_events(self) -> None:
        answered = self.cycle
        super().handle_events()
        if self.cycle is not answered and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


def server_config(app: ASGIApp) -> uvicorn.Config:
    """Return how uvicorn serves the sandbox."""
    return uvicorn.Config(app, log_level="warning", ws="none", http=HeadDeadline)
