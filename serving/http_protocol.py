"""The HTTP server: uvicorn with deadlines for slow clients and a fair bound on connections."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 512
KEEP_ALIVE_SECONDS = 5
GRACE_SECONDS = 2
HEAD_SECONDS = 10.0
HEAD_BYTES = 64 * 1024
UNREAD_SECONDS = 60.0
IPV6_CLIENT_BITS = 64
"""Prefix length of an IPv6 client: the owner of an address usually has its whole /64 network."""


def server_config(app: ASGIApp, **where: Any) -> uvicorn.Config:
    """Return how uvicorn serves `app`; `where` are its host and port."""
    return uvicorn.Config(
        app,
        **where,
        log_config=None,  # serving.log gives uvicorn's lines the form of all others
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        http=ServiceProtocol,
        limit_concurrency=CONNECTIONS + 2,  # reached only when the server waits for none of its clients
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


class _StrictConnection(h11.Connection):
    """Refuses a request whose body a proxy in front of the service may end elsewhere (RFC 9112, 6.1)."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version != b"1.1"):
                raise h11.RemoteProtocolError("the length of the body is ambiguous")
        return event


class _ClientLines(logging.LoggerAdapter[logging.Logger]):
    """Uvicorn's log of one connection, with the address of its client."""

    @property
    def level(self) -> int:
        return self.logger.level


class ServiceProtocol(H11Protocol):
    """Close connections of clients that hold them without use, and of those whose requests are ambiguous.

    * The next request must be there, head and all, `HEAD_SECONDS` after it could have begun.
    * A closed connection stays open until the client has read what is left for it. A client that reads nothing for
      `UNREAD_SECONDS` is cut off.
    * Beyond `CONNECTIONS`, a new connection takes the place of the one that has waited for its client longest, among
      those of the client with the most connections. So one client keeps neither other clients nor probes out.
    """

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _since = 0.0
    """Since when the connection is in its present state, by the loop's clock."""

    def __init__(self, config: uvicorn.Config, *rest: Any, **named: Any) -> None:
        super().__init__(config, *rest, **named)
        self.conn = _StrictConnection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        fields = {"client": self.client[0] if self.client else ""}
        self.logger = _ClientLines(self.logger, {"fields": fields})  # type: ignore[assignment]
        self._client = client_of(self.client[0] if self.client else "")
        self._expect_head()
        if len(self.connections) > CONNECTIONS:
            self._make_room()

    def handle_events(self) -> None:
        answered = self.cycle
        super().handle_events()
        if self.cycle is not answered:  # a request's head is complete
            self._stop()
            self._since = self.loop.time()
        if self.cycle is not None and not self.cycle.response_complete and self.conn.their_state is h11.DONE:
            ahead, _ = self.conn.trailing_data
            if len(ahead) > HIGH_WATER_LIMIT:
                self.transport.abort()
            elif ahead:
                # uvicorn stops reading when more comes before the response, and would not see that the client hangs up.
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        # The next request may have been sent along with this one; then it is being answered by now.
        if self.cycle is answered:
            self._expect_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._since = self.loop.time()
        self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def waits_for_client(self) -> bool:
        """Return whether the client has to act next: send the rest of a request, or read the response."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def _make_room(self) -> None:
        others = [other for other in self.connections if isinstance(other, ServiceProtocol) and other is not self]
        count = Counter(other._client for other in (*others, self))
        waiting = [other for other in others if other.waits_for_client()]
        if waiting:
            last = max(waiting, key=lambda other: (count[other._client], -other._since))
            self.connections.discard(last)
            last.transport.abort()

    def _expect_head(self) -> None:
        self._stop()
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._deadline = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def client_of(address: str) -> str:
    """Return the key of a client: its IPv4 address, or the /64 network of its IPv6 address."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped:
            return str(ip.ipv4_mapped)
        return f"{IPv6Address(int(ip) >> (128 - IPV6_CLIENT_BITS) << (128 - IPV6_CLIENT_BITS))}/{IPV6_CLIENT_BITS}"
    return str(ip)
