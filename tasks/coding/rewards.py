"""Rewards of the coding task."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from training.scoring.user_functions import load_function, source_digest


class Result(BaseModel):
    """The result of a rollout."""

    model_config = ConfigDict(frozen=True)

    passed: int = Field(ge=0)
    """Hidden checks that pass."""
    checks: int = Field(ge=1)
    steps: int = Field(ge=0)
    finished: bool
    step_cost: float


def all_tests(result: Result) -> float:
    """Return 1 if every check passes, else 0; minus the cost of the cells beyond the first."""
    return _with_cost(float(result.passed == result.checks), result)


def partial_tests(result: Result) -> float:
    """Return half the share of checks that pass. If all pass, return 1 minus the cost of the cells beyond the first."""
    return _with_cost(0.5 * result.passed / result.checks + 0.5 * (result.passed == result.checks), result)


def _with_cost(reward: float, result: Result) -> float:
    # Cells of a rollout that repairs nothing are free, so that giving up early does not pay.
    repaired = result.passed == result.checks
    return reward - result.step_cost * max(0, result.steps - 1) if repaired else reward


_BUILT_IN = {"all_tests": all_tests, "partial_tests": partial_tests}


def reward_function(name: str) -> Callable[[Result], float]:
    """Return the function that `coding_reward` names. Raises BadInput if it does not exist."""
    return _BUILT_IN[name] if name in _BUILT_IN else load_function("coding_reward", name)


def reward_sources(name: str) -> dict[str, str]:
    """Return the sha256 of the module that `coding_reward` names. The digest of our code covers the built-in functions."""
    return {} if name in _BUILT_IN else {"coding_reward": source_digest(reward_function(name))}
