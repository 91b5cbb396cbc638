"""The watch over calls: silent while anything moves, and by name when nothing does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from training.guard import stall_watch
from training.guard.stall_watch import CallWatch


class Clock:
    """The clock of the watch, which a test puts forward. Two looks at it never show the same time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        """Of the watch."""

    def monotonic(self) -> float:
        self.looks += threading.current_thread().name == "stall-watch"
        self.now += 1e-6
        return self.now

    def looked(self) -> None:
        """Wait until the watch has seen the present time."""
        looks = self.looks
        wait_until(lambda: self.looks > looks + 1)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stall_watch, "time", clock)
    return clock


@pytest.fixture
def recorded() -> list[str]:
    return []


def test_names_the_oldest_calls_and_says_it_again(clock: Clock, recorded: list[str]) -> None:
    with (
        CallWatch(0.2, recorded.append) as watch,
        watch.call("rollout 1"),
        watch.call("rollout 2"),
        watch.call("update"),
    ):
        with watch.call("judge"):
            clock.now += 1
            wait_until(lambda: len(recorded) == 1)
        assert recorded == [
            "nothing has moved for 1 s; waiting for rollout 1 (1 s), rollout 2 (1 s), update (1 s) and 1 more"
        ]
        clock.now += 1
        wait_until(lambda: len(recorded) == 2)
    assert recorded[1].endswith("update (2 s)")


def test_a_warning_that_fails_is_not_the_last(clock: Clock, recorded: list[str]) -> None:
    def fails_at_first(line: str) -> None:
        recorded.append(line)
        if len(recorded) == 1:
            raise BrokenPipeError("the terminal is gone")

    with CallWatch(0.2, fails_at_first) as watch, watch.call("update"):
        for count in (1, 2):
            clock.now += 1
            wait_until(lambda count=count: len(recorded) == count)
        assert watch._thread.is_alive()


def test_calls_ahead_of_their_step_are_named_last(clock: Clock, recorded: list[str]) -> None:
    with (
        CallWatch(0.2, recorded.append) as watch,
        watch.call("rollout of step 3", turn=3),
        watch.call("rollout of step 2", turn=2),
        watch.call("update of step 2", turn=2),
        watch.call("validation", turn=1),
    ):
        clock.now += 1
        wait_until(lambda: len(recorded) == 1)
    assert "waiting for validation (1 s), rollout of step 2 (1 s), update of step 2 (1 s) and 1 more" in recorded[0]


def test_is_silent_while_calls_move_and_when_there_are_none(clock: Clock, recorded: list[str]) -> None:
    with CallWatch(1.0, recorded.append) as watch:
        with watch.call("warm start"):
            for _ in range(4):
                clock.now += 0.9
                watch.moves()
                clock.looked()
        clock.now += 60
        clock.looked()
    assert recorded == []
