"""Workspaces that are started before anybody asks for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sandbox.errors import NoIsolation

QUIET = 0.02
"""Seconds after a request for a workspace before the next one is started in advance: requests go first."""


class Closable(Protocol):
    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Closable)


class Spares(Generic[Kept]):
    """A thread keeps `count` workspaces started, as `start` returns them."""

    def __init__(self, count: int, start: Callable[[], Kept]) -> None:
        self._count, self._start = count, start
        self._ready: deque[Kept] = deque()
        self._changed = threading.Condition()
        self._asked = time.monotonic()
        self._failed = self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def ready(self) -> int:
        return len(self._ready)

    def take(self) -> Kept | None:
        """Return a workspace that waits for its first message, `None` if there is none. It may have died meanwhile."""
        with self._changed:
            if self._count and self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._fill, name="spare workspaces", daemon=True)
                self._thread.start()
            self._asked, self._failed = time.monotonic(), False
            self._changed.notify_all()
            return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """Start no more workspaces, and end those that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        while self._ready:
            self._ready.popleft().close()

    def _fill(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._failed or len(self._ready) >= self._count):
                    self._changed.wait()
                if self._closed:
                    return
                if (quiet := time.monotonic() - self._asked) < QUIET:
                    self._changed.wait(QUIET - quiet)
                    continue
            try:
                started = self._start()
            except NoIsolation:
                self._failed = True  # the next request tries by itself, and its caller hears why
            else:
                with self._changed:
                    self._ready.append(started)
