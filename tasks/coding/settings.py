"""Settings of the coding task."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class CodingSettings(BaseModel):
    """Bugs, sandbox, limits of an episode, and rewards."""

    model_config = ConfigDict(frozen=True)

    model_name: str = Field(
        default="coding-agent",
        pattern=r"^[A-Za-z0-9][\w.-]{0,63}$",
        description="name under which trained versions are registered, of at most 64 letters, digits, '.', '_' and '-'",
    )
    project: str | None = Field(
        default=None, min_length=1, description="project in Weights & Biases; null: WANDB_PROJECT of the environment"
    )
    bugs: str = Field(
        default="built-in",
        min_length=1,
        description="built-in, or R2E-Gym in its own columns: a Hub dataset id or a folder of parquet files",
    )
    excluded_bugs: tuple[str, ...] = Field(default=(), description="ids of R2E-Gym bugs to leave out")
    dataset_size: int | None = Field(
        default=600, ge=1, le=100_000, description="bugs to train on; null: all (only where `bugs` is not built-in)"
    )
    coding_test_size: int = Field(default=120, ge=1, le=10_000, description="held-out bugs to evaluate on")
    sandbox_url: str | None = Field(
        default=None, description="base URL of a sandbox service; null: start one on this machine"
    )
    max_repl_steps: int = Field(default=3, ge=1, le=200, description="cells per rollout")
    max_context_tokens: int = Field(
        default=900,
        ge=128,
        le=1_000_000,
        description="maximum tokens of a conversation; beyond it, old output is shortened",
    )
    coding_reward: str = Field(
        default="all_tests",
        description="all_tests, partial_tests, or package.module:name of a function of tasks.coding.rewards.Result",
    )
    step_cost: float = Field(
        default=0.02, ge=0, le=1, description="subtracted from the reward of a repair for each cell beyond the first"
    )
