"""Report pending calls when nothing has progressed for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

STALL_SECONDS = 300.0
"""Seconds without progress after which a run says what it waits for: longer than an update takes on a laptop."""
_NAMED = 3
"""Number of calls that a message names; it counts the others."""


class CallWatch:
    """Calls are registered by `with watch.call("update"):`. If none begins, ends or `moves` for `seconds`, `warn` gets the pending ones.

    Calls with the lowest turn are named first, then the oldest, because calls for later steps wait for these.

    It runs in a separate thread, so that it reports calls that block the event loop too.
    """

    def __init__(self, seconds: float, warn: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._warn = warn
        self._calls: dict[object, tuple[int, float, str]] = {}
        self._moved = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def call(self, name: str, *, turn: int = 0) -> Iterator[None]:
        key = object()
        with self._lock:
            self._calls[key] = turn, time.monotonic(), name
        self.moves()
        try:
            yield
        finally:
            with self._lock:
                del self._calls[key]
            self.moves()

    def moves(self) -> None:
        """Report progress of a long call."""
        self._moved = time.monotonic()

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds / 10):
            now = time.monotonic()
            if now - self._moved < self._seconds:
                continue
            with self._lock:
                calls = sorted(self._calls.values())
            if calls:
                named = ", ".join(f"{name} ({now - begun:.0f} s)" for _, begun, name in calls[:_NAMED])
                more = f" and {len(calls) - _NAMED} more" if len(calls) > _NAMED else ""
                # What shows warnings may be gone, for example a closed terminal: that must not end the watch.
                with suppress(Exception):
                    self._warn(f"nothing has moved for {now - self._moved:.0f} s; waiting for {named}{more}")
            self._moved = now  # repeat the warning after the same time
