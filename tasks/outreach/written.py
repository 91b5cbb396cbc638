"""An e-mail of a rollout as the learn loop keeps it."""

from __future__ import annotations

import json
import math

import art
from pydantic import BaseModel, ConfigDict


class WrittenEmail(BaseModel):
    """An e-mail of a rollout and its feedback. `expected` is the reply probability, if the simulation knows it."""

    model_config = ConfigDict(frozen=True)

    message_id: str
    scenario: str
    outcome: str
    subject: str | None
    body: str | None
    citations: tuple[str, ...]
    facts: tuple[str, ...]
    reward: float
    sends: int = 0
    """Recipients, 0 if no e-mail was finished."""
    reply_rate: float
    open_rate: float
    expected: float | None
    quality: float
    options: tuple[str, ...]
    """Facts in the list from which the first one was chosen, in their order."""
    options_of: str | None = None
    """Node whose neighbours were listed."""
    first_fact: str | None
    probability: float | None
    """Probability with which the policy chose its first fact, given the list."""

    @classmethod
    def of(cls, trajectory: art.Trajectory) -> WrittenEmail:
        told, measured = trajectory.metadata, trajectory.metrics
        logprob = measured.get("first_fact_logprob")
        return cls(
            message_id=str(told["message_id"]),
            scenario=str(told["scenario_id"]),
            outcome=str(told["outcome"]),
            subject=told["subject"],
            body=told["body"],
            citations=json.loads(str(told["citations"])),
            facts=json.loads(str(told["facts"])),
            reward=trajectory.reward,
            sends=int(measured["sends"]),
            reply_rate=float(measured["reply_rate"]),
            open_rate=float(measured["open_rate"]),
            expected=measured.get("expected_reply_rate"),
            quality=float(measured["quality"]),
            options=json.loads(str(told["options"])),
            options_of=told["options_of"],
            first_fact=told["first_fact"],
            probability=math.exp(float(logprob)) if logprob is not None else None,
        )
