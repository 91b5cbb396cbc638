"""uvicorn's HTTP protocol with deadlines: connections of idle and slow senders, and of those that do not read, are closed."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
UNREAD_SECONDS = 60.0


class DeadlineProtocol(H11Protocol):
    """Closes a connection whose next request is not there, head and all, `HEAD_SECONDS` after it could have begun.

    A closed connection stays open until the client has read what is left for it. Therefore a client that reads nothing for
    `UNREAD_SECONDS` is cut off; otherwise such clients could take all connections for good.
    """

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def handle_events(self) -> None:
        answered = self.cycle
        super().handle_events()
        if self.cycle is not answered:  # a request's head is complete
            self._stop()

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        # The next request may have been sent along with this one; then it is being answered by now.
        if self.cycle is answered:
            self._expect_head()

    def pause_writing(self) -> None:
        super().pause_writing()
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

    def _expect_head(self) -> None:
        self._stop()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._deadline = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
