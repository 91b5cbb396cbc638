"""Learning-rate schedules."""

from __future__ import annotations

import pytest

from training.loop.updates import grpo_learning_rate, warm_start_learning_rates
from training.settings import TrainerSettings


def rates(schedule: str, *, steps: int = 4, rise: int = 2, groups: int = 6) -> list[float]:
    settings = TrainerSettings(
        max_steps=steps, learning_rate=0.4, warm_up_steps=rise, learning_rate_schedule=schedule, groups_per_step=6
    )
    return [grpo_learning_rate(settings, step, groups) for step in range(1, steps + 1)]


def test_the_rate_rises_and_then_stays_or_falls() -> None:
    assert rates("constant") == pytest.approx([0.2, 0.4, 0.4, 0.4])
    assert rates("cosine", steps=6) == pytest.approx([0.2, 0.4, 0.3473, 0.22, 0.0927, 0.04], abs=1e-4)
    assert rates("cosine", steps=1, rise=1) == pytest.approx([0.4])
    assert rates("cosine", steps=3, rise=9) == pytest.approx([0.4 / 9, 0.8 / 9, 1.2 / 9])


def test_with_the_cosine_a_step_that_learns_from_fewer_groups_moves_less() -> None:
    assert rates("cosine", steps=6, groups=2) == pytest.approx([rate / 3 for rate in rates("cosine", steps=6)])
    assert rates("cosine", groups=9) == rates("cosine"), "more groups than groups_per_step are not faster"
    assert rates("constant", groups=2) == rates("constant")


def test_a_warm_start_rises_to_its_peak_and_ends_low() -> None:
    given = warm_start_learning_rates(40, 1e-3)
    assert len(given) == 40 and max(given) <= 1e-3 and given[0] < max(given) and 0 < given[-1] < max(given) / 5
