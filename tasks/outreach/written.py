"""An e-mail of a rollout as the learn loop keeps it, and its choice of a fact for off-policy estimates."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable

import art
from pydantic import BaseModel, ConfigDict

from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.graph import FACT_TYPES
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.off_policy import LoggedChoice
from tasks.outreach.scenarios import Prospect
from tasks.outreach.task import OutreachTask

_ORDERS = 2000
"""Lists that are drawn to count how often a fact is at each place."""


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


def logged_choices(
    emails: Iterable[WrittenEmail], task: OutreachTask, scores: NodeScores, *, explore: bool
) -> list[LoggedChoice]:
    """Return the choices of a first fact from a list that was ordered by `scores`, of e-mails by one policy.

    The policy may always take the head of a list. Then the order of lists makes its choices random. So the probability
    of a fact is averaged over the orders that lists have, for a policy whose choice depends on the place alone. Its
    probabilities of places are the shares of these e-mails.

    Rollouts that read no listed fact made no choice. In a simulation each choice has the true reply rate of every
    option: that of the same e-mail with the option in place of its first fact.
    """
    scenarios = {scenario.id: scenario for scenario in task.scenarios}
    simulation = task.feedback if isinstance(task.feedback, SimulatedProspects) else None
    made = [email for email in emails if email.options_of is not None and email.first_fact in email.options]
    taken = Counter(email.options.index(str(email.first_fact)) for email in made)
    orders: dict[str, dict[str, list[float]]] = {}
    choices = []
    for email in made:
        assert email.first_fact is not None and email.options_of is not None
        if email.options_of not in orders:
            orders[email.options_of] = _places(email.options_of, task, scores, explore)
        places = orders[email.options_of]
        rates = None
        if simulation is not None:
            prospect = scenarios[email.scenario].prospect
            rates = {option: _rate_with(simulation, email, prospect, option) for option in places}
        choices.append(
            LoggedChoice(
                options=tuple(places),
                fact=email.first_fact,
                probability=max(
                    1 / _ORDERS,
                    sum(taken[place] * share for place, share in enumerate(places[email.first_fact])) / len(made),
                ),
                reply_rate=email.reply_rate,
                rates=rates,
            )
        )
    return choices


def _places(node_id: str, task: OutreachTask, scores: NodeScores, explore: bool) -> dict[str, list[float]]:
    """Return fact -> probability of each place in lists of this node's neighbours, counted in `_ORDERS` lists."""
    counts: dict[str, list[float]] = {
        node.id: [0.0] * task.settings.max_neighbours
        for node in task.graph.neighbours(node_id)
        if node.type in FACT_TYPES
    }
    ids = [node.id for node in task.graph.neighbours(node_id)]
    order = scores.drawn if explore else scores.ranked
    for number in range(_ORDERS):
        listed = order(ids, f"place-{number}")[: task.settings.max_neighbours]
        for place, fact in enumerate(id for id in listed if id in counts):
            counts[fact][place] += 1 / _ORDERS
    return counts


def _rate_with(simulation: SimulatedProspects, email: WrittenEmail, prospect: Prospect, option: str) -> float:
    if email.body is None:
        return 0.0
    facts = [option if fact == email.first_fact else fact for fact in email.facts]
    return simulation.reply_probability(prospect, facts, email.quality)
