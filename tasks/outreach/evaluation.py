"""Evaluate on held-out prospects: policy and node scores of the last iteration, compared with those of iteration 0."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.node_scores import START, NodeScores, rank_correlation
from tasks.outreach.off_policy import Estimate, by_scores, estimate, logged_choices
from tasks.outreach.task import OutreachTask
from tasks.outreach.written import WrittenEmail

BASELINE, GRAPH_ONLY, GRPO_ONLY, LEARNT = "iteration 0", "scores only", "policy only", "policy and scores"
"""Row -> whether its policy and its scores are those after the last iteration."""
_RESAMPLES = 10_000


def compare(emails: Mapping[str, Sequence[WrittenEmail]], seed: int = 0) -> dict[str, Any]:
    """Return the reply rate of every row, and its difference and ratio to the baseline with 95% bootstrap intervals
    over prospects.

    A prospect's rate is the mean over its e-mails, of the simulation's probability where it is known. A rollout without
    an e-mail gets no reply and counts as 0. If all rollouts of a row to a prospect failed, the prospect is left out of
    all rows. The p-value is that of a one-sided paired sign-flip test.
    """
    rates = {row: _by_prospect(written) for row, written in emails.items()}
    prospects = sorted(set.intersection(*map(set, rates.values())))
    base = [rates[BASELINE][prospect] for prospect in prospects]
    rows = {}
    for row, written in emails.items():
        values = [rates[row][prospect] for prospect in prospects]
        rows[row] = {
            "reply_rate": fmean(values),
            "sends": sum(email.sends for email in written),
            "sampled_reply_rate": fmean(email.reply_rate for email in written),
            "finished": fmean(float(email.body is not None) for email in written),
            "finished_reply_rate": _finished(written),
            "quality": fmean(email.quality for email in written),
            **(_against(base, values, seed) if row != BASELINE else {}),
        }
    known = all(email.expected is not None for written in emails.values() for email in written)
    return {"prospects": len(prospects), "expected": known, "rows": rows}


def estimate_by_scores(emails: Mapping[str, Sequence[WrittenEmail]], task: OutreachTask) -> Estimate | None:
    """Estimate the reply rate of always following the task's scores, from held-out e-mails of policies that did not see
    these scores.
    """
    fresh = NodeScores.fresh(task.graph, task.scores.decay)
    choices = [
        choice for row in (BASELINE, GRPO_ONLY) for choice in logged_choices(emails[row], task, fresh, explore=False)
    ]
    return estimate(choices, [by_scores(choice.options, task.scores) for choice in choices])


def about_scores(task: OutreachTask, top_half: Mapping[str, float]) -> dict[str, Any]:
    """Return how far the scores of facts moved from 1 at most, and their rank correlation with the hidden interests.

    Both are also given for the top-half rule. Without a simulation, or if its interests have no effect, there is no
    rank correlation.
    """
    facts = [fact.id for fact in task.graph.facts]
    rules = {"advantage": task.scores.scores, "top_half": top_half}
    found: dict[str, Any] = {
        "drift": {rule: max(abs(scores[fact] - START) for fact in facts) for rule, scores in rules.items()},
        "drift_in_deviations": max(abs(task.scores.score(f) - START) / task.scores.deviation(f) for f in facts),
    }
    if isinstance(task.feedback, SimulatedProspects):
        truth = [task.feedback.mean_interest(fact) for fact in facts]
        found["interests"] = dict(zip(facts, truth, strict=True))
        if len(set(truth)) > 1:
            found["rank_correlation"] = {
                rule: rank_correlation([scores[fact] for fact in facts], truth) for rule, scores in rules.items()
            }
    return found


def _rate(email: WrittenEmail) -> float:
    return email.reply_rate if email.expected is None else email.expected


def _by_prospect(emails: Sequence[WrittenEmail]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for email in emails:
        found.setdefault(email.scenario, []).append(_rate(email))
    return {prospect: fmean(rates) for prospect, rates in found.items()}


def _finished(emails: Sequence[WrittenEmail]) -> float | None:
    rates = [_rate(email) for email in emails if email.body is not None]
    return fmean(rates) if rates else None


def _against(base: Sequence[float], values: Sequence[float], seed: int) -> dict[str, Any]:
    chance = random.Random(f"bootstrap-{seed}")
    differences = [value - before for value, before in zip(values, base, strict=True)]
    drawn = [[chance.randrange(len(base)) for _ in base] for _ in range(_RESAMPLES)]
    means = [(fmean(values[n] for n in sample), fmean(base[n] for n in sample)) for sample in drawn]
    ratios = [after / before for after, before in means if before > 0]
    observed = fmean(differences)
    flipped = [fmean(chance.choice((-1, 1)) * d for d in differences) >= observed for _ in range(_RESAMPLES)]
    return {
        "difference": observed,
        "difference_interval": _interval([after - before for after, before in means]),
        "ratio": fmean(values) / fmean(base) if fmean(base) > 0 else None,
        "ratio_interval": _interval(ratios) if ratios else None,
        "p": (1 + sum(flipped)) / (1 + len(flipped)),
    }


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[int(0.025 * len(ordered))], ordered[int(0.975 * (len(ordered) - 1))]
