"""End an episode when its policy server has stopped making progress, but not when it is merely slow.

Turns and tokens bound an episode. A limit on its wall time would make evaluation results depend on the machine and its
load. So this module limits only the time without progress of the server on any of the episodes that share it.

All tasks use it for their requests. It is therefore part of the trainer's protocol, like `training.task`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPException
from weakref import WeakKeyDictionary

from training.loopback import DIRECT

REPLY_TIMEOUT = 300.0
"""Seconds without progress of a policy's server after which an episode fails. Only a hang takes as long: a busy server's counters
move."""
_ANSWER_SECONDS = 30.0


class PolicyServerProgress:
    """Time of a policy server's last progress: an ended reply, a streamed token, or a change of its own counters."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._moved_at = float("-inf")
        self._counters: str | None = None
        self._asking = asyncio.Lock()

    def moved(self) -> None:
        """Note progress that a caller has seen: a reply or a token."""
        self._moved_at = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def required(self, seconds: float) -> AsyncIterator[None]:
        """Raise `TimeoutError` when the server makes no progress for `seconds` seconds."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                watching = asyncio.create_task(self._watch(limit, seconds))
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"the policy server at {self._base_url} made no progress for {seconds:g} s") from error

    async def _watch(self, limit: asyncio.Timeout, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            left = max(begun, self._moved_at) + seconds - loop.time()
            if left > 0:
                await asyncio.sleep(left)
            elif not await self._counters_moved(begun, seconds):
                limit.reschedule(loop.time())
                return

    async def _counters_moved(self, begun: float, seconds: float) -> bool:
        """Return whether the server's counters changed since the last request."""
        async with self._asking:
            if max(begun, self._moved_at) + seconds > asyncio.get_running_loop().time():
                return True  # another episode has seen progress meanwhile
            counters = await asyncio.to_thread(_work_done, f"{self._base_url.rstrip('/').removesuffix('/v1')}/metrics")
            moved = counters is not None and counters != self._counters
            self._counters = counters
            if moved:
                self.moved()
            return moved


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, PolicyServerProgress]] = WeakKeyDictionary()


def progress_of(base_url: str) -> PolicyServerProgress:
    """Return the progress of a server, shared by all its episodes in this event loop."""
    return _servers.setdefault(asyncio.get_running_loop(), {}).setdefault(base_url, PolicyServerProgress(base_url))


def _work_done(url: str) -> str | None:
    """Return a server's counters of tokens and busy seconds, from JSON (torch backend) or Prometheus text (vLLM)."""
    try:
        with DIRECT.open(url, timeout=_ANSWER_SECONDS) as response:
            text = response.read().decode(errors="replace")
    except (OSError, HTTPException):
        return None
    try:
        counters = {name: value for name, value in json.loads(text).items() if "tokens" in name or "seconds" in name}
        return json.dumps(counters, sort_keys=True)
    except (ValueError, AttributeError):
        lines = [line for line in text.splitlines() if "tokens" in line and not line.startswith("#")]
        return "\n".join(lines) or None
