"""Ending a step that runs an event loop by a signal."""

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
    """`asyncio.run` within `signals_cancel`.

    ART's loss imports a library that replaces `asyncio.run` by one that leaves SIGINT alone; what runs after a training in the
    same process would get that.
    """
    with signals_cancel(), asyncio.Runner() as runner:
        return runner.run(main)


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
