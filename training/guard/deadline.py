"""A time limit against hanging that is extended on every progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEP_TIMEOUT = 3600.0
"""Seconds without the end of any rollout after which a step or validation gives up on the others. Only a hang takes as long:
a server that makes no progress fails its rollouts sooner."""


class MovingDeadline:
    """Cancel everything inside `limit()` with `TimeoutError` when `move()` was not called for `seconds`.

    Before the first call of `move` there is no limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._when: float | None = None
        self._limits: set[asyncio.Timeout] = set()

    @property
    def begun(self) -> bool:
        return self._when is not None

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        async with asyncio.timeout_at(self._when) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.remove(limit)

    def move(self) -> None:
        self._when = asyncio.get_running_loop().time() + self._seconds
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(self._when)
