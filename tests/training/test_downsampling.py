"""Updates on the rollouts of a group whose rewards vary most."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from toy_run import CountingBackend, CountingModel, ToyTask, run_with, settings

from training.downsampling import max_variance_subset
from training.task import Policy


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=8), st.integers(2, 8))
def test_no_subset_of_that_size_varies_more(rewards: list[int], size: int) -> None:
    chosen = max_variance_subset(rewards, size)
    assert chosen == sorted(set(chosen)) and len(chosen) == min(size, len(rewards))
    best = max(statistics.pvariance(subset) for subset in itertools.combinations(rewards, len(chosen)))
    assert statistics.pvariance(rewards[position] for position in chosen) == pytest.approx(best)


def test_the_rare_reward_is_always_learnt_from_and_ties_are_even() -> None:
    assert max_variance_subset([0, 0, 0, 1, 0, 0, 0, 0], 4) == [0, 1, 3, 7]
    assert max_variance_subset([1, 0, 1, 0, 1, 0, 1, 0], 4) == [1, 3, 4, 6]
    assert max_variance_subset([0.1, 0.9, 0.5, 0.4], 2) == [0, 1]


class Graded(ToyTask):
    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        trajectory.reward = [0.0, 0.2, 0.5, 1.0][self.number_in_group(policy, scenario)]
        return trajectory


class Keeping(CountingBackend):
    def __init__(self, model: CountingModel) -> None:
        super().__init__(model)
        self.trained: list[list[list[float]]] = []

    async def train(self, model: Any, groups: Any, **named: Any) -> SimpleNamespace:
        self.trained.append([[trajectory.reward for trajectory in group.trajectories] for group in groups])
        return await super().train(model, groups, **named)


def test_a_step_plays_all_rollouts_and_is_updated_on_the_chosen_ones(tmp_path: Path) -> None:
    backends: dict[int | None, Keeping] = {}
    for size, expected in ((2, [0.0, 1.0]), (3, [0.0, 0.2, 1.0]), (None, [0.0, 0.2, 0.5, 1.0])):
        rules = settings(max_steps=2, train_rollouts_per_group=size)
        run, backends[size] = run_with(Keeping, tmp_path / str(size), rules, Graded())
        assert backends[size].trained == [[expected] * 3] * 2
        for row in run.history[1:]:
            assert (row.rollouts_sampled, row.rollouts_trained) == (12, 3 * len(expected))
            assert row.reward == pytest.approx(0.425), "figures are of all rollouts"


def test_rollouts_beyond_max_context_are_not_chosen(tmp_path: Path) -> None:
    class Long(Graded):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            if trajectory.reward == 1.0:
                trajectory.metrics["context_tokens"] = 129
            return trajectory

    rules = settings(max_steps=1, train_rollouts_per_group=2, max_context=128)
    _, backend = run_with(Keeping, tmp_path, rules, Long())
    assert backend.trained == [[[0.0, 0.5]] * 3]


@pytest.mark.parametrize("size", [6, 7])
def test_an_invalid_subset_size_is_refused(size: int) -> None:
    with pytest.raises(
        ValidationError, match=rf"train_rollouts_per_group={size} must be less than rollouts_per_group=6"
    ):
        settings(rollouts_per_group=6, train_rollouts_per_group=size)
