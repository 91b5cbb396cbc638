"""Let signals end a step that runs an event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_cancellable(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine like `asyncio.run`, within `signals_cancel`.

    Not `asyncio.run` itself: a library that ART's loss imports replaces it by one that ignores SIGINT.
    """
    with signals_cancel(), asyncio.Runner() as runner:
        return runner.run(main)


@contextmanager
def signals_cancel() -> Iterator[None]:
    """Let SIGINT and SIGTERM cancel the running event loop. The previous handlers follow when the loop has ended.

    ZenML's handler raises at any point. In an event loop that may lose a callback, and a task that waits for the
    callback never ends, not even if cancelled. asyncio's handler cancels instead, but replaces only Python's default
    handler. Does nothing outside the main thread, which receives no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = signal.SIGINT

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = signal.SIGTERM
        signal.raise_signal(signal.SIGINT)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminate),
    }
    interrupted = None
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted = error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupted is not None:
        signal.raise_signal(received)
        raise interrupted
