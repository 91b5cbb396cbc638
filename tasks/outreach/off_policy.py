"""Off-policy evaluation: estimate the reply rate of another policy for choosing facts from e-mails that were sent.

Every logged choice has the probability with which it was made. With w = target probability / logged probability, r the reply rate and
q(x, a) a model of it:

* IPS: mean of w r. Unbiased, noisy.
* SNIPS: sum of w r / sum of w. Less noisy, slightly biased (Swaminathan and Joachims, 2015).
* doubly robust: mean of q(x, target) + w (r - q(x, a)). Right if either the probabilities or q are (Dudik et al., 2011).
* effective sample size: (sum of w)^2 / sum of w^2. It is small if the target would have made few of the logged choices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.graph import FACT_TYPES
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.scenarios import Prospect
from tasks.outreach.task import OutreachTask
from tasks.outreach.written import WrittenEmail

_TEMPERATURE = 0.1
_PRIOR = 2.0
"""Replies at the mean rate that the model of a fact's rate begins with."""
_ORDERS = 2000
"""Lists that are drawn to count how often a fact is at each place."""


class LoggedChoice(BaseModel):
    """A fact chosen among `options`, with its probability, and the reply rate of the e-mail.

    `rates` has the true reply rate of every option, which only a simulation knows.
    """

    model_config = ConfigDict(frozen=True)

    options: tuple[str, ...]
    fact: str
    probability: float
    reply_rate: float
    rates: dict[str, float] | None = None


class Estimate(BaseModel):
    """Estimated reply rates of the target policy, and the effective sample size.

    `logged` is the mean reply rate of the logged choices, `truth` that of the target policy if a simulation knows it.
    """

    model_config = ConfigDict(frozen=True)

    logged: float
    truth: float | None
    ips: float
    snips: float
    doubly_robust: float
    effective_sample_size: float
    choices: int


def estimate(choices: Sequence[LoggedChoice], targets: Sequence[Mapping[str, float]]) -> Estimate | None:
    """Estimate the reply rate of a policy that chooses as `targets` say: per choice, the probability of each of its options.

    None without choices. The model q is the mean reply rate of a fact, shrunk to the mean of all.
    """
    if not choices:
        return None
    weights = [
        target.get(choice.fact, 0.0) / choice.probability for choice, target in zip(choices, targets, strict=True)
    ]
    q = _mean_reply_rates(choices)
    overall = fmean(choice.reply_rate for choice in choices)
    expected = [sum(p * q.get(fact, overall) for fact, p in target.items()) for target in targets]
    rewards = [weight * choice.reply_rate for weight, choice in zip(weights, choices, strict=True)]
    corrections = [w * (choice.reply_rate - q[choice.fact]) for w, choice in zip(weights, choices, strict=True)]
    total, squares = math.fsum(weights), math.fsum(weight * weight for weight in weights)
    truths = [
        sum(p * choice.rates[fact] for fact, p in target.items())
        for choice, target in zip(choices, targets, strict=True)
        if choice.rates is not None
    ]
    return Estimate(
        logged=overall,
        truth=fmean(truths) if len(truths) == len(choices) else None,
        ips=fmean(rewards),
        snips=math.fsum(rewards) / total if total else 0.0,
        doubly_robust=fmean(expected) + fmean(corrections),
        effective_sample_size=total * total / squares if squares else 0.0,
        choices=len(choices),
    )


def _mean_reply_rates(choices: Sequence[LoggedChoice]) -> dict[str, float]:
    overall = fmean(choice.reply_rate for choice in choices)
    by_fact: dict[str, list[float]] = {}
    for choice in choices:
        by_fact.setdefault(choice.fact, []).append(choice.reply_rate)
    return {fact: (sum(rates) + _PRIOR * overall) / (len(rates) + _PRIOR) for fact, rates in by_fact.items()}


def by_scores(options: Sequence[str], scores: NodeScores) -> dict[str, float]:
    """Return the probabilities of a policy that prefers well-scored facts: softmax of score / `_TEMPERATURE`."""
    best = max(scores.score(option) for option in options)
    weights = {option: math.exp((scores.score(option) - best) / _TEMPERATURE) for option in options}
    total = math.fsum(weights.values())
    return {option: weight / total for option, weight in weights.items()}


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
