"""Ending a step that runs an event loop by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def signals_cancel() -> Iterator[None]:
    """SIGINT and SIGTERM cancel what `asyncio.run` runs within; who handled them before does so when the loop has ended.

    ZenML's handler raises wherever the signal comes. Within an event loop that loses a callback now and then, and whatever
    waits for it never ends, not even when it is cancelled. asyncio's own handler cancels instead, but takes the place of
    Python's only. Does nothing outside the main thread, which no signal reaches.
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
