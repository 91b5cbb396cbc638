"""Ends an episode whose policy server has stopped working, and never one that is merely slow.

An episode is bounded by its turns and tokens. How long these take says something about the machine and its load, and nothing about
the policy, so a limit on an episode's own wall time would make the result of an evaluation depend on the machine. What is measured
here instead is how long the server has done nothing at all, for any of the episodes that share it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPException
from typing import Any
from urllib.request import ProxyHandler, build_opener
from weakref import WeakKeyDictionary

from langchain_core.callbacks import AsyncCallbackHandler

_ANSWER_SECONDS = 30.0
_DIRECT = build_opener(ProxyHandler({}))


class PolicyServerProgress(AsyncCallbackHandler):
    """When one policy server last did something: a reply has ended, a token was streamed, or its own counters have moved."""

    def __init__(self, base_url: str) -> None:
        super().__init__()
        self._base_url = base_url
        self._moved_at = float("-inf")
        self._counters: str | None = None
        self._asking = asyncio.Lock()

    async def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        self._moved()

    async def on_llm_end(self, *_: Any, **__: Any) -> None:
        self._moved()

    @asynccontextmanager
    async def required(self, seconds: float) -> AsyncIterator[None]:
        """Raise `TimeoutError` when the server has not got any further for `seconds` seconds."""
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

    def _moved(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()

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
        """Whether the server says that it has computed something since it was last asked."""
        async with self._asking:
            if max(begun, self._moved_at) + seconds > asyncio.get_running_loop().time():
                return True  # another episode has asked meanwhile
            counters = await asyncio.to_thread(_work_done, f"{self._base_url.rstrip('/').removesuffix('/v1')}/metrics")
            moved = counters is not None and counters != self._counters
            self._counters = counters
            if moved:
                self._moved()
            return moved


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, PolicyServerProgress]] = WeakKeyDictionary()


def progress_of(base_url: str) -> PolicyServerProgress:
    """The progress of a server, shared by all episodes of this event loop that it answers."""
    return _servers.setdefault(asyncio.get_running_loop(), {}).setdefault(base_url, PolicyServerProgress(base_url))


def _work_done(url: str) -> str | None:
    """The counters of a server's work: those of tokens and busy seconds, as JSON (the torch backend) or Prometheus text (vLLM)."""
    try:
        with _DIRECT.open(url, timeout=_ANSWER_SECONDS) as response:
            text = response.read().decode(errors="replace")
    except (OSError, HTTPException):
        return None
    try:
        counters = {name: value for name, value in json.loads(text).items() if "tokens" in name or "seconds" in name}
        return json.dumps(counters, sort_keys=True)
    except (ValueError, AttributeError):
        lines = [line for line in text.splitlines() if "tokens" in line and not line.startswith("#")]
        return "\n".join(lines) or None
