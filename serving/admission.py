"""The queue: how many questions are answered at the same time, how many may wait, and which are refused."""

from __future__ import annotations

import asyncio
import math
import time
from types import TracebackType
from typing import Self

_SMOOTHING = 0.2
"""Weight of the latest answer in the running mean of seconds per answer."""


class TurnedAway(Exception):
    """There is no place in the queue. `status` is the HTTP status, `retry_after` is in seconds."""

    def __init__(self, status: int, message: str, retry_after: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.reason = reason


class Admission:
    """A bounded first-in, first-out queue in front of `capacity` places. For one event loop.

    Nobody waits for the response to a submitted question. Submitted questions may take at most half of the places, so
    that they neither hold up people nor starve. They wait in a separate queue without a time limit; `Results` bounds
    its length.
    """

    def __init__(self, capacity: int, *, max_waiting: int, max_wait: float, per_caller: int | None = None) -> None:
        self.capacity = capacity
        self.max_waiting = max_waiting
        self.max_wait = max_wait
        self.per_caller = per_caller
        """Most questions that one caller may have in the queue; `None` means no limit per caller."""
        self.running = 0
        self._places = asyncio.Semaphore(capacity)
        self._for_submitted = asyncio.Semaphore(max(1, capacity // 2))
        self._waiting: dict[Ticket, None] = {}
        self._mean_seconds = 10.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def join(self, caller: str) -> Ticket:
        """Return a ticket for the queue, to be entered with `async with`. Raises `TurnedAway` when there is no room."""
        if self.per_caller is not None:
            mine = sum(ticket.caller == caller for ticket in self._waiting)
            if mine >= self.per_caller:
                message = (
                    f"this key has {mine} questions waiting already, the most that one key may have: ask again later"
                )
                raise TurnedAway(429, message, self.retry_after(), "caller_full")
        if self.running + self.waiting >= self.capacity + self.max_waiting:
            message = f"{self.running} questions are being answered and {self.waiting} wait: ask again later"
            raise TurnedAway(503, message, self.retry_after(), "queue_full")
        ticket = Ticket(self, caller)
        self._waiting[ticket] = None
        return ticket

    def submitted(self, caller: str) -> Ticket:
        """Return a ticket that waits without a time limit and does not count as waiting."""
        return Ticket(self, caller, submitted=True)

    def retry_after(self) -> int:
        """Return the seconds after which a place in the queue is likely."""
        return max(1, min(120, math.ceil(self._mean_seconds * (self.waiting + 1) / self.capacity)))

    def position(self, ticket: Ticket) -> int:
        """Return the place of a ticket in the queue, from 1; 0 when it does not wait."""
        return next((place for place, other in enumerate(self._waiting, 1) if other is ticket), 0)

    def answered_in(self, seconds: float) -> None:
        self._mean_seconds += _SMOOTHING * (seconds - self._mean_seconds)


class Ticket:
    """A place in the queue, then one of the places that are answered. It is given back on exit, after errors too."""

    def __init__(self, admission: Admission, caller: str, *, submitted: bool = False) -> None:
        self.caller = caller
        self.queued_seconds = 0.0
        self._admission = admission
        self._submitted = submitted
        self._joined = time.monotonic()

    async def __aenter__(self) -> Self:
        admission = self._admission
        try:
            if self._submitted:
                await admission._for_submitted.acquire()
                try:
                    await admission._places.acquire()
                except BaseException:
                    admission._for_submitted.release()
                    raise
            else:
                async with asyncio.timeout(admission.max_wait):
                    await admission._places.acquire()
        except TimeoutError:
            message = f"no place became free within {admission.max_wait:g} seconds: ask again later"
            raise TurnedAway(503, message, admission.retry_after(), "waited_too_long") from None
        finally:
            self.leave()
        self.queued_seconds = time.monotonic() - self._joined
        self._started = time.monotonic()
        admission.running += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        admission = self._admission
        admission.running -= 1
        admission._places.release()
        if self._submitted:
            admission._for_submitted.release()
        if error is None:
            admission.answered_in(time.monotonic() - self._started)

    def leave(self) -> None:
        """Give up waiting; safe to call twice."""
        self._admission._waiting.pop(self, None)
