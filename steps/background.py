"""Call a function at intervals while another call blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def called_every(seconds: float, look: Callable[[], None], *, thread: str) -> Iterator[None]:
    """Call `look` every `seconds` in a daemon thread named `thread`. The thread ends with the context."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            look()

    looking = threading.Thread(target=repeat, name=thread, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
