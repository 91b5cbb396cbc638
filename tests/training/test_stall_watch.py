"""The watch over calls: silent while anything moves, and by name when nothing does."""

from __future__ import annotations

import time

from training.stall_watch import CallWatch


def wait_for(told: list[str], count: int) -> None:
    deadline = time.monotonic() + 300
    while len(told) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_names_the_oldest_calls_and_says_it_again() -> None:
    told: list[str] = []
    with CallWatch(0.2, told.append) as watch, watch.call("rollout 1"), watch.call("rollout 2"), watch.call("update"):
        with watch.call("judge"):
            wait_for(told, 1)
        assert "waiting for rollout 1 (0 s), rollout 2 (0 s), update (0 s) and 1 more" in told[0]
        wait_for(told, 2)
    assert "more" not in told[-1]


def test_a_warning_that_fails_is_not_the_last() -> None:
    told: list[str] = []

    def fails_at_first(line: str) -> None:
        told.append(line)
        if len(told) == 1:
            raise BrokenPipeError("the terminal is gone")

    with CallWatch(0.2, fails_at_first) as watch, watch.call("update"):
        wait_for(told, 2)
        assert watch._thread.is_alive()
    assert len(told) >= 2


def test_what_is_done_ahead_of_its_step_is_named_last() -> None:
    told: list[str] = []
    with (
        CallWatch(0.2, told.append) as watch,
        watch.call("rollout of step 3", turn=3),
        watch.call("rollout of step 2", turn=2),
        watch.call("update of step 2", turn=2),
        watch.call("validation", turn=1),
    ):
        wait_for(told, 1)
    assert "waiting for validation (0 s), rollout of step 2 (0 s), update of step 2 (0 s) and 1 more" in told[0]


def test_is_silent_while_calls_move_and_when_there_are_none() -> None:
    told: list[str] = []
    with CallWatch(1.0, told.append) as watch:
        with watch.call("warm start"):
            for _ in range(12):
                time.sleep(0.1)
                watch.moves()
        time.sleep(1.2)
    assert told == []
