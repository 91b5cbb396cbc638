"""The weights of the verifiable reward, in a separate module because settings must load without heavy imports."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RewardWeights(BaseModel):
    """Weights of the parts of a reward; `verifiable_reward` says how they add up.

    Raises a validation error when silence, a malformed call or partial credit could pay more than an honest answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    correct: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="reward of a correct answer before bonuses"
    )
    wrong: float = Field(
        default=-0.4, allow_inf_nan=False, description="reward of a wrong answer before partial credit"
    )
    no_answer: float = Field(
        default=-0.7, allow_inf_nan=False, description="reward of an episode without an answer before partial credit"
    )
    malformed: float = Field(
        default=-1.0,
        allow_inf_nan=False,
        description="reward of an episode that ends in a malformed reply before partial credit",
    )
    overlap: float = Field(
        default=0.2, ge=0, le=10, description="weight of the token-F1 of any answer with the reference"
    )
    facts: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="weight of the share of the reference's facts and names that any answer states, less its contradictions; a "
        "correct answer earns all of it",
    )
    all_sources: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="weight of the share of gold mails that a correct answer cites and the agent saw (read, or in a passage)",
    )
    few_sources: float = Field(
        default=0.1, ge=0, le=10, description="weight of gold mails / cited mails (at most 1) of a correct answer"
    )
    few_turns: float = Field(
        default=0.1, ge=0, le=10, description="weight of the share of turns that a correct answer leaves unused"
    )
    partial: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="without a correct answer: weight of each of the shares of gold mails found, read, and both seen and "
        "cited, and of having made no invalid call",
    )

    @model_validator(mode="after")
    def _answering_pays(self) -> Self:
        if not self.correct > self.wrong >= self.no_answer >= self.malformed:
            raise ValueError(
                f"reward weights must fall from correct ({self.correct:g}) over wrong ({self.wrong:g}) and no_answer "
                f"({self.no_answer:g}) to malformed ({self.malformed:g}): otherwise silence pays more than an honest answer"
            )
        # Silence earns less than a wrong answer: it cites nothing.
        if self.correct <= (wrong := self.wrong + 4 * self.partial):
            raise ValueError(
                f"partial={self.partial:g} is too large: a wrong answer can earn {wrong:g}, and a correct one alone earns "
                f"{self.correct:g}: lower partial, or raise correct"
            )
        best_wrong, least_right = wrong + self.overlap, self.correct + self.all_sources + self.few_sources
        if best_wrong > least_right + 1e-9:
            raise ValueError(
                f"overlap={self.overlap:g} is too large: a wrong answer with the right mails can earn {best_wrong:g}, and a correct one "
                f"that shares no word with the reference earns {least_right:g}: lower overlap or partial, or raise correct"
            )
        return self

    @property
    def largest_deviation(self) -> float:
        """The largest standard deviation that the rewards of a group can have: half of them best, half of them worst."""
        return (self.best + self.few_turns - self.malformed) / 2

    @property
    def best(self) -> float:
        """The reward of a correct answer that cites the right mails in the words of the reference, without `few_turns`."""
        return self.correct + self.overlap + self.facts + self.all_sources + self.few_sources
