"""The weights of the verifiable reward, in a separate module because settings must load without heavy imports."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RewardWeights(BaseModel):
    """Weights of the parts of a reward; `verifiable_reward` says how they add up.

    Raises a validation error when silence or a malformed call could pay more than an honest answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    correct: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="base of a correct answer")
    wrong: float = Field(default=-0.4, allow_inf_nan=False, description="base of a wrong answer")
    no_answer: float = Field(default=-0.7, allow_inf_nan=False, description="base of an episode without an answer")
    malformed: float = Field(
        default=-1.0, allow_inf_nan=False, description="base of an episode that ends in a malformed reply"
    )
    overlap: float = Field(default=0.2, ge=0, le=10, description="times the token-F1 of the answer and the reference")
    all_sources: float = Field(
        default=0.3, ge=0, le=10, description="times the share of gold mails that a correct answer cites"
    )
    few_sources: float = Field(
        default=0.1, ge=0, le=10, description="for a correct answer that cites no superfluous mail"
    )
    few_turns: float = Field(
        default=0.1, ge=0, le=10, description="times the share of turns that a correct answer leaves unused"
    )
    partial: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="partial credit without a correct answer, for each of: gold mails found, read, cited; no invalid "
        "call",
    )

    @model_validator(mode="after")
    def _answering_pays(self) -> Self:
        if not self.correct > self.wrong >= self.no_answer >= self.malformed:
            raise ValueError(
                f"reward weights must fall from correct ({self.correct:g}) over wrong ({self.wrong:g}) and no_answer "
                f"({self.no_answer:g}) to malformed ({self.malformed:g}): otherwise silence pays more than an honest answer"
            )
        return self
