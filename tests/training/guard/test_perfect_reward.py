"""A reward that everybody gets in full from the first step on: learnt, or an exploit as old as the run."""

from __future__ import annotations

from collections.abc import Callable

import art
import pytest

from tests.training.guard.test_alerts import Rollout, raised, record, rows_of
from training.record.history import StepRecord


def uniform(correct: Callable[[int], bool | None], reward: float, steps: int = 3) -> list[StepRecord]:
    """A run in which every rollout gets the same reward from the first step on; `correct` by the number of the rollout."""

    def of_step(number: int) -> list[art.TrajectoryGroup]:
        played = [record(Rollout(bool(correct(n)), reward), f"s{number}-{n % 4}") for n in range(24)]
        for n, trajectory in enumerate(played):
            if correct(n) is None:
                del trajectory.metrics["correct"]
        return [art.TrajectoryGroup(played[first::4]) for first in range(4)]

    return rows_of(of_step(number) for number in range(1, steps + 1))


@pytest.mark.parametrize(
    "correct", [lambda n: n % 3 == 0, lambda n: False, lambda n: None], ids=["some", "none", "unknown"]
)
def test_a_reward_that_is_perfect_from_the_first_step_is_caught_at_the_second(
    correct: Callable[[int], bool | None],
) -> None:
    rows = uniform(correct, 1.0)
    assert raised(rows) == [(2, "perfect_reward"), (3, "perfect_reward")]
    assert rows[1].alerts[0].sentence == "100% of the rollouts of steps 1 and 2 got 1.00, the highest reward of the run"


def test_right_answers_to_easy_questions_and_a_policy_that_can_do_nothing_raise_no_alert() -> None:
    assert raised(uniform(lambda n: True, 1.0)) == []
    assert raised(uniform(lambda n: False, 0.0)) == raised(uniform(lambda n: False, -1.0)) == []
