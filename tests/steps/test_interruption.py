"""A step that runs an event loop ends by a signal, and the handler of before has the last word."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from steps.interruption import run_cancellable, signals_cancel


class Stopped(Exception):
    pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_loop_and_then_reaches_the_previous_handler(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(asyncio, "run", None)  # others may have replaced it

    def handle(received: int, frame: object) -> None:
        seen.append(signal.Signals(received).name)
        raise Stopped

    async def main() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, number)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    before = signal.signal(number, handle)
    try:
        with pytest.raises(Stopped):
            run_cancellable(main())
        assert seen == ["cancelled", number.name]
        assert signal.getsignal(number) is handle
    finally:
        signal.signal(number, before)


def test_other_errors_and_other_threads_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), signals_cancel():
        raise Stopped
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    done = []

    def work() -> None:
        with signals_cancel():
            done.append(asyncio.run(asyncio.sleep(0, "done")))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["done"]
