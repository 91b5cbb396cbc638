"""An e-mail of a rollout as the learn loop keeps it, and its choice of a fact for off-policy estimates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

import art
from pydantic import BaseModel, ConfigDict

from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.off_policy import LoggedChoice
from tasks.outreach.scenarios import Prospect, Scenario


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
    first_fact: str | None
    probability: float | None
    """Probability with which the policy chose its first fact."""

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
            first_fact=told["first_fact"],
            probability=math.exp(float(logprob)) if logprob is not None else None,
        )


def logged_choices(
    emails: Iterable[WrittenEmail], scenarios: Mapping[str, Scenario], simulation: SimulatedProspects | None
) -> list[LoggedChoice]:
    """Return the choices of a first fact from a list. Rollouts that read no listed fact made none.

    With a simulation each choice has the true reply rate of every option: that of the same e-mail with the option in
    place of its first fact.
    """
    choices = []
    for email in emails:
        if email.first_fact is None or email.first_fact not in email.options or not email.probability:
            continue
        rates = None
        if simulation is not None:
            prospect = scenarios[email.scenario].prospect
            rates = {option: _rate_with(simulation, email, prospect, option) for option in email.options}
        choices.append(
            LoggedChoice(
                options=email.options,
                fact=email.first_fact,
                probability=email.probability,
                reply_rate=email.reply_rate,
                rates=rates,
            )
        )
    return choices


def _rate_with(simulation: SimulatedProspects, email: WrittenEmail, prospect: Prospect, option: str) -> float:
    if email.body is None:
        return 0.0
    facts = [option if fact == email.first_fact else fact for fact in email.facts]
    return simulation.reply_probability(prospect, facts, email.quality)
