"""Node scores follow the advantage: nothing for equal rewards, noise for random replies, the interests for real ones."""

from __future__ import annotations

import random

import pytest

from tasks.outreach.feedback import BEST_REPLY_RATE, SimulatedProspects
from tasks.outreach.node_scores import BOUNDS, START, NodeScores, SentEmail, TopHalfScores, rank_correlation
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios

GRAPH = synthetic_graph(0)
FACTS = [fact.id for fact in GRAPH.facts]


def campaign(
    seed: int, *, random_replies: bool, collapse: bool = False
) -> tuple[NodeScores, TopHalfScores, SimulatedProspects]:
    """Eight iterations of 4 prospects and 6 e-mails, each with one random fact; with `collapse` the policy prefers good ones."""
    scenarios = synthetic_scenarios(seed, 24, 2)
    simulation = SimulatedProspects(GRAPH, scenarios, seed, random_replies=random_replies)
    chance = random.Random(seed)
    scores, top_half = NodeScores.fresh(GRAPH, 0.97), TopHalfScores.fresh(GRAPH, 0.97)
    for iteration in range(8):
        emails = []
        for number in range(4):
            scenario = scenarios[(4 * iteration + number) % 24]
            ids = [fact.id for fact in GRAPH.facts_of(scenario.seeds[0])]
            for _ in range(6):
                known = sorted(ids, key=simulation.mean_interest)
                fact = chance.choice(known[-3:] if collapse and iteration > 3 else ids)
                expected = simulation.reply_probability(scenario.prospect, [fact], 1.0)
                replies = sum(chance.random() < expected for _ in range(200))
                emails.append(
                    SentEmail(scenario=scenario.id, facts=(fact,), reward=min(1.0, replies / 200 / BEST_REPLY_RATE))
                )
        scores, top_half = scores.updated(emails), top_half.updated(emails)
    return scores, top_half, simulation


def test_equal_rewards_leave_every_score_where_it_is_and_the_top_half_rule_does_not() -> None:
    emails = [SentEmail(scenario=f"s{n % 3}", facts=(FACTS[n % 5],), reward=0.5) for n in range(12)]
    assert set(NodeScores.fresh(GRAPH, 0.97).updated(emails).scores.values()) == {START}
    drifted = TopHalfScores.fresh(GRAPH, 0.97).updated(emails).scores
    assert max(drifted.values()) > START > min(drifted.values())


@pytest.mark.parametrize("seed", range(3))
def test_scores_rank_facts_as_their_hidden_interest(seed: int) -> None:
    for collapse in (False, True):
        scores, _, simulation = campaign(seed, random_replies=False, collapse=collapse)
        found = rank_correlation([scores.score(f) for f in FACTS], [simulation.mean_interest(f) for f in FACTS])
        assert found >= 0.6, collapse


@pytest.mark.parametrize("seed", range(3))
def test_random_replies_stay_within_noise_and_the_top_half_rule_does_not(seed: int) -> None:
    scores, top_half, _ = campaign(seed, random_replies=True)
    assert all(abs(scores.score(fact) - START) < 2 * scores.deviation(fact) for fact in FACTS)
    assert max(abs(top_half.scores[fact] - START) for fact in FACTS) > 0.3


def test_scores_stay_within_their_bounds_and_what_is_not_seen_returns_to_the_start() -> None:
    scores = NodeScores.fresh(GRAPH, 0.5)
    extreme = [SentEmail(scenario="s", facts=(FACTS[n],), reward=float(n)) for n in (0, 1)]
    for _ in range(50):
        scores = scores.updated(extreme)
        assert all(BOUNDS[0] <= score <= BOUNDS[1] for score in scores.scores.values())
    far = scores.score(FACTS[1])
    for _ in range(50):
        scores = scores.updated([])
    assert far > 1.15 and scores.score(FACTS[1]) == pytest.approx(START, abs=0.01)


def test_equal_scores_are_listed_in_random_order_and_better_ones_first() -> None:
    scores = NodeScores.fresh(GRAPH, 0.97)
    assert len({tuple(scores.ranked(FACTS, str(seed))) for seed in range(20)}) > 10
    better = scores.updated([SentEmail(scenario="s", facts=(f,), reward=float(f == "f7")) for f in FACTS])
    assert {better.ranked(FACTS, str(seed))[0] for seed in range(20)} == {"f7"}


def test_drawn_orders_begin_with_better_nodes_more_often_and_still_try_the_others() -> None:
    scores = NodeScores.fresh(GRAPH, 0.97)
    assert {scores.drawn(FACTS, str(seed))[0] for seed in range(200)} == set(FACTS)
    emails = [SentEmail(scenario="s", facts=(fact,), reward=float(fact == "f7")) for fact in FACTS]
    better = scores.updated(emails * 2)
    first = [better.drawn(FACTS, str(seed))[0] for seed in range(200)]
    assert max(set(first), key=first.count) == "f7"
    assert len(set(first)) > 1


def test_rank_correlation_averages_ties() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1.0)
    assert rank_correlation([1, 1, 2], [3, 2, 1]) == pytest.approx(-0.866, abs=0.001)
    assert rank_correlation([1, 1, 1], [3, 2, 1]) == 0.0
