"""What a rollout earns."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from training.functions import load_function


class Result(BaseModel):
    """What came of a rollout."""

    model_config = ConfigDict(frozen=True)

    passed: int = Field(ge=0)
    """Hidden checks that pass."""
    checks: int = Field(ge=1)
    steps: int = Field(ge=0)
    finished: bool
    step_cost: float


def all_tests(result: Result) -> float:
    """1 when every check passes, else 0; less the cost of the cells beyond the first."""
    return _with_cost(float(result.passed == result.checks), result)


def partial_tests(result: Result) -> float:
    """Half for the share of checks that pass and half when all of them do; less the cost of the cells beyond the first."""
    return _with_cost(0.5 * result.passed / result.checks + 0.5 * (result.passed == result.checks), result)


def _with_cost(reward: float, result: Result) -> float:
    # A rollout without any success costs nothing: giving up early must not pay.
    return reward - result.step_cost * max(0, result.steps - 1) if reward else 0.0


def reward_function(name: str) -> Callable[[Result], float]:
    """The function that a setting names. Raises BadInput when there is none."""
    built_in = {"all_tests": all_tests, "partial_tests": partial_tests}
    return built_in[name] if name in built_in else load_function("coding_reward", name)
