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
from collections.abc import Mapping, Sequence
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from tasks.outreach.node_scores import NodeScores


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


def _mean_reply_rates(choices: Sequence[LoggedChoice], prior: float = 2.0) -> dict[str, float]:
    overall = fmean(choice.reply_rate for choice in choices)
    by_fact: dict[str, list[float]] = {}
    for choice in choices:
        by_fact.setdefault(choice.fact, []).append(choice.reply_rate)
    return {fact: (sum(rates) + prior * overall) / (len(rates) + prior) for fact, rates in by_fact.items()}


def by_scores(options: Sequence[str], scores: NodeScores, temperature: float = 0.1) -> dict[str, float]:
    """Return the probabilities of a policy that prefers well-scored facts: softmax of score / temperature."""
    best = max(scores.score(option) for option in options)
    weights = {option: math.exp((scores.score(option) - best) / temperature) for option in options}
    total = math.fsum(weights.values())
    return {option: weight / total for option, weight in weights.items()}
