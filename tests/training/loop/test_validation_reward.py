"""The reward of a validation: of rollouts without a group, from all sources but RULER."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import art
import pytest

from tests.training.toy_run import ToyTask, settings, train
from training.errors import BadInput
from training.scoring.scorer import Scorer
from training.task import Policy


def three(trajectory: art.Trajectory) -> float:
    return 3.0


def test_the_validation_reward_is_the_reward_of_the_run(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", settings(validate_every=2), ToyTask())
    blended = settings(
        validate_every=2,
        scoring="blend",
        blend_weights={"verifiable": 0.5, "custom": 2.0},
        reward_function=f"{__name__}:three",
    )
    run = train(tmp_path / "blended", blended, ToyTask())
    for before, after in zip(plain.history, run.history, strict=True):
        assert (before.validation_reward is None) == (after.validation_reward is None)
        if before.validation_reward is not None:
            assert after.validation_reward == pytest.approx(0.5 * before.validation_reward + 6.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scoring": "ruler"}, 1.5),
        ({"scoring": "blend", "blend_weights": {"ruler": 1.0, "verifiable": 0.3}}, 0.45),
        (
            {
                "scoring": "blend",
                "blend_weights": {"ruler": 1.0, "verifiable": 0.3, "custom": 0.1},
                "reward_function": f"{__name__}:three",
            },
            0.75,
        ),
    ],
)
def test_a_rollout_alone_has_the_weighted_sum_without_ruler(
    tmp_path: Path, changes: dict[str, Any], expected: float
) -> None:
    rollout = art.Trajectory(messages_and_choices=[], reward=1.5)
    reward = asyncio.run(Scorer(settings(**changes), tmp_path).score_alone(rollout))
    assert reward == pytest.approx(expected)


def test_a_mistake_of_the_users_function_at_one_validation_question_ends_the_run(tmp_path: Path) -> None:
    class Mistaken(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            if policy.temperature == 0 and scenario == min(held_out):
                raise BadInput("reward_function: mine raised KeyError")
            return await super().rollout(policy, scenario)

    known = ToyTask()
    train(tmp_path / "known", settings(validate_every=2, max_steps=1), known)
    held_out = {scenario for _, temperature, scenario in known.asked if temperature == 0}
    with pytest.raises(BadInput, match="^reward_function: mine raised KeyError$"):
        train(tmp_path / "run", settings(validate_every=2, max_steps=1), Mistaken())
