"""Settings of runs that compare single replies."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class DecisionSettings(BaseModel):
    """Where replies are compared, how they are rewarded, and which questions are asked."""

    model_config = ConfigDict(frozen=True)

    decisions: tuple[str, ...] | None = Field(
        default=None,
        description="learn from single replies at these decisions of an episode instead of from whole episodes, for example "
        "query,open,answer; null: all that the task has, if scoring=verifiable; []: whole episodes",
    )
    decision_reward: Literal["immediate", "continued"] = Field(
        default="immediate",
        description="reward of a reply at a decision: what it achieves at once, or that of the episode when the policy "
        "finishes it greedily",
    )
    episode_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="with decisions: share of a step's questions that are played as whole episodes",
    )
    open_share: float = Field(
        default=0.75,
        ge=0,
        le=1,
        description="with decisions: share of a step's questions that the policy did not solve when it was last asked, or "
        "that are likely to be hard; 0: any",
    )
