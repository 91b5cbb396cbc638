"""Off-policy estimates against the truth, which the simulation knows."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.node_scores import NodeScores, SentEmail
from tasks.outreach.off_policy import LoggedChoice, by_scores, estimate
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios

GRAPH, SCENARIOS = synthetic_graph(0), synthetic_scenarios(0, 24, 2)
SIMULATION = SimulatedProspects(GRAPH, SCENARIOS, 0)


def logged(seed: int, count: int) -> tuple[list[LoggedChoice], list[dict[str, float]], float]:
    """Choices of a policy that likes the first fact of a product, the target's probabilities, and what the target would get."""
    chance = random.Random(seed)
    ids = [fact.id for fact in GRAPH.facts]
    interests = sorted(ids, key=SIMULATION.mean_interest)
    scores = NodeScores.fresh(GRAPH, 1.0)
    for _ in range(8):
        scores = scores.updated(
            [SentEmail(scenario="s", facts=(f,), reward=interests.index(f) / len(ids)) for f in ids]
        )
    choices, targets, truth = [], [], []
    for number in range(count):
        scenario = SCENARIOS[number % 24]
        options = tuple(fact.id for fact in GRAPH.facts_of(scenario.seeds[0]))
        weights = [2.0] + [1.0] * (len(options) - 1)
        [fact] = chance.choices(options, weights)
        rates = {option: SIMULATION.reply_probability(scenario.prospect, [option], 1.0) for option in options}
        replies = sum(chance.random() < rates[fact] for _ in range(200))
        probability = weights[options.index(fact)] / sum(weights)
        choices.append(LoggedChoice(options=options, fact=fact, probability=probability, reply_rate=replies / 200))
        targets.append(by_scores(options, scores))
        truth.append(sum(p * rates[option] for option, p in targets[-1].items()))
    return choices, targets, fmean(truth)


def test_the_estimates_come_to_the_truth_and_the_logged_mean_does_not() -> None:
    choices, targets, truth = logged(0, 6000)
    found = estimate(choices, targets)
    assert found is not None
    assert fmean(choice.reply_rate for choice in choices) < 0.7 * truth
    for name in ("ips", "snips", "doubly_robust"):
        assert getattr(found, name) == pytest.approx(truth, rel=0.08), name
    assert 100 < found.effective_sample_size < found.choices


def test_the_doubly_robust_estimate_is_nearer_to_the_truth_than_ips() -> None:
    errors: dict[str, list[float]] = {"ips": [], "doubly_robust": []}
    for seed in range(40):
        choices, targets, truth = logged(seed, 200)
        found = estimate(choices, targets)
        assert found is not None
        for name, squares in errors.items():
            squares.append((getattr(found, name) - truth) ** 2)
    assert fmean(errors["doubly_robust"]) < fmean(errors["ips"])


def test_the_logged_policy_itself_has_full_effective_sample_size() -> None:
    choices, _, _ = logged(1, 100)
    [one, *rest] = choices
    same = [{choice.fact: choice.probability} for choice in choices]
    found = estimate(choices, same)
    assert found is not None
    assert found.effective_sample_size == pytest.approx(100)
    assert found.truth is None and found.logged == pytest.approx(fmean(choice.reply_rate for choice in choices))
    with_rates = one.model_copy(update={"rates": dict.fromkeys(one.options, 0.25)})
    whole = {option: 1 / len(one.options) for option in one.options}
    known = estimate([with_rates], [whole])
    assert known is not None and known.truth == pytest.approx(0.25)
    mixed = estimate([with_rates, *rest[:1]], [whole, same[1]])
    assert mixed is not None and mixed.truth is None
    assert found.ips == pytest.approx(fmean(choice.reply_rate for choice in choices))
    assert estimate([], []) is None
