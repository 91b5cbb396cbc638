"""The verifiable reward in numbers, with weights of their own that no default can shift."""

from __future__ import annotations

import pytest

from agent.reward import Rubric, verifiable_reward
from agent.reward_weights import RewardWeights

WEIGHTS = RewardWeights(
    correct=2.0,
    all_sources=0.4,
    few_sources=0.2,
    few_turns=0.3,
    wrong=-1.5,
    no_answer=-1.75,
    malformed=-3.0,
    partial=0.25,
    overlap=0.6,
    facts=0.5,
)
RIGHT = {
    "correct": True,
    "answered": True,
    "overlap": 0.0,
    "found": 1.0,
    "read": 1.0,
    "cited": 1.0,
    "cited_count": 2,
    "turns": 4,
}
NOTHING = {
    "correct": False,
    "answered": False,
    "overlap": 0.0,
    "found": 0.0,
    "read": 0.0,
    "cited": 0.0,
    "cited_count": 0,
    "turns": 6,
}


@pytest.mark.parametrize(
    ("counts", "reward"),
    [
        (RIGHT, 2.0 + 0.4 + 0.2 + 0.3 * 0.5),
        ({**RIGHT, "turns": 8}, 2.0 + 0.4 + 0.2),
        ({**RIGHT, "cited": 0.5, "cited_count": 4}, 2.0 + 0.2 + 0.1 + 0.15),
        ({**RIGHT, "cited": 0.0, "cited_count": 0}, 2.0 + 0.15),
        ({**RIGHT, "correct": False}, -1.5 + 0.25 * 4),
        ({**RIGHT, "correct": False, "cited": 0.5, "read": 0.5}, -1.5 + 0.25 * 3),
        ({**RIGHT, "correct": False, "invalid_calls": 1}, -1.5 + 0.25 * 3),
        ({**RIGHT, "overlap": 0.5}, 2.0 + 0.4 + 0.2 + 0.3 * 0.5 + 0.3),
        ({**RIGHT, "correct": False, "overlap": 0.5}, -1.5 + 0.25 * 4 + 0.3),
        ({**RIGHT, "facts": 1.0}, 2.0 + 0.4 + 0.2 + 0.3 * 0.5 + 0.5),
        ({**RIGHT, "correct": False, "facts": 0.75}, -1.5 + 0.25 * 4 + 0.375),
        (NOTHING, -1.75 + 0.25),
        ({**NOTHING, "found": 1.0, "turns": 1}, -1.75 + 0.5),
        ({**NOTHING, "malformed": True}, -3.0 + 0.25),
        ({**NOTHING, "malformed": True, "invalid_calls": 2}, -3.0),
    ],
)
def test_each_part_is_worth_its_weight(counts: dict[str, float], reward: float) -> None:
    rest = {"malformed": False, "gold_count": 2, "invalid_calls": 0, "repeated_calls": 0}
    assert verifiable_reward(Rubric(**{**rest, **counts}), 8, WEIGHTS) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("counts", "reward"),
    [
        ({**RIGHT, "overlap": 1.0}, 1.65),
        ({**RIGHT, "overlap": 1.0, "cited": 0.0, "cited_count": 0}, 1.25),
        ({**RIGHT, "correct": False}, 0.8),
        ({**RIGHT, "correct": False, "cited": 0.0}, 0.5),
        ({**RIGHT, "correct": False, "answered": False, "cited": 0.0}, 0.2),
        (NOTHING, -0.4),
        ({**NOTHING, "malformed": True, "invalid_calls": 1}, -1.0),
    ],
)
def test_the_default_weights_pay_honest_tries_in_order(counts: dict[str, float], reward: float) -> None:
    rest = {"malformed": False, "gold_count": 2, "invalid_calls": 0, "repeated_calls": 0}
    assert verifiable_reward(Rubric(**{**rest, **counts}), 8, RewardWeights()) == pytest.approx(reward)


def test_no_weight_of_facts_lets_a_wrong_answer_pass_a_right_one() -> None:
    rest = {"malformed": False, "gold_count": 2, "invalid_calls": 0, "repeated_calls": 0}
    weights = RewardWeights(facts=10, overlap=0.6)
    wrong = Rubric(**{**rest, **RIGHT, "correct": False, "facts": 1.0, "overlap": 1.0})
    right = Rubric(**{**rest, **RIGHT, "facts": 1.0})
    assert (
        verifiable_reward(wrong, 8, weights) <= verifiable_reward(right, 8, weights) <= weights.best + weights.few_turns
    )
