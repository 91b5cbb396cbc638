"""What the held-out evaluation says of scores, against simulations with interests and without."""

from __future__ import annotations

import pytest

from tasks.outreach.evaluation import BASELINE, GRPO_ONLY, about_scores, compare, estimate_by_scores
from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.node_scores import NodeScores, SentEmail
from tasks.outreach.off_policy import logged_choices
from tasks.outreach.settings import OutreachSettings
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from tasks.outreach.task import OutreachTask
from tasks.outreach.written import WrittenEmail

GRAPH, SCENARIOS = synthetic_graph(0), synthetic_scenarios(0, 4, 18)
FACTS = [fact.id for fact in GRAPH.facts]


def task(*, random_replies: bool = False) -> OutreachTask:
    """A task whose scores are those of the hidden interests."""
    simulation = SimulatedProspects(GRAPH, SCENARIOS, 0, random_replies=random_replies)
    scores = NodeScores.fresh(GRAPH, 1.0)
    ranks = sorted(FACTS, key=simulation.mean_interest)
    for _ in range(10):
        scores = scores.updated([SentEmail(scenario="s", facts=(f,), reward=ranks.index(f) / 16) for f in FACTS])
    return OutreachTask(GRAPH, SCENARIOS, simulation, OutreachSettings(), scores)


def emails(of: OutreachTask, scores: NodeScores, copies: int = 1, *, explore: bool = False) -> list[WrittenEmail]:
    """E-mails to every held-out prospect by a policy that always takes the head of a list."""
    written = []
    for number, scenario in enumerate(SCENARIOS[4:] * copies):
        ids = [fact.id for fact in GRAPH.facts_of(scenario.seeds[0])]
        options = tuple((scores.drawn if explore else scores.ranked)(ids, str(number))[:6])
        fact = options[0]
        assert isinstance(of.feedback, SimulatedProspects)
        rate = of.feedback.reply_probability(scenario.prospect, [fact], 1.0)
        written.append(
            WrittenEmail(
                message_id=str(number),
                scenario=scenario.id,
                outcome="finished",
                subject="Hello",
                body="Hi",
                citations=(fact,),
                facts=(fact,),
                reward=0.5,
                sends=200,
                reply_rate=rate,
                open_rate=0.5,
                expected=rate,
                quality=1.0,
                options=options,
                options_of=scenario.seeds[0],
                first_fact=fact,
                probability=1.0,
            )
        )
    return written


def test_following_good_scores_is_estimated_near_its_true_rate() -> None:
    scored, fresh = task(), NodeScores.fresh(GRAPH, 1.0)
    rows = {BASELINE: emails(scored, fresh, 20), GRPO_ONLY: emails(scored, fresh, 20)}
    found = estimate_by_scores(rows, scored)
    assert found is not None and found.truth is not None
    assert found.choices == 720 and 72 < found.effective_sample_size < 720
    assert found.truth > 1.4 * found.logged
    assert found.ips == pytest.approx(found.truth, rel=0.3)
    assert found.snips == pytest.approx(found.truth, rel=0.1)
    assert found.doubly_robust == pytest.approx(found.truth, rel=0.1)
    evaluation = compare(rows)
    assert [row["sends"] for row in evaluation["rows"].values()] == [72_000, 72_000]


def test_the_probability_of_a_fact_is_that_of_its_place_in_a_random_list() -> None:
    scored, fresh = task(), NodeScores.fresh(GRAPH, 1.0)
    equal = logged_choices(emails(scored, fresh), scored, fresh, explore=False)
    assert all(choice.probability == pytest.approx(1 / 8, abs=0.03) for choice in equal)
    written = emails(scored, scored.scores, 50, explore=True)
    drawn = logged_choices(written, scored, scored.scores, explore=True)
    for product in ("p1", "p2"):
        facts = [fact.id for fact in GRAPH.facts_of(product)]
        of_product = [choice for choice in drawn if choice.fact in facts]
        for fact in facts:
            share = sum(choice.fact == fact for choice in of_product) / len(of_product)
            logged = [choice.probability for choice in of_product if choice.fact == fact]
            assert all(probability == pytest.approx(share, abs=0.06) for probability in logged), fact


def test_scores_are_compared_with_the_interests_if_there_are_any() -> None:
    scored, control = task(), task(random_replies=True)
    flat = dict.fromkeys(scored.scores.scores, 1.0)
    found = about_scores(scored, flat)
    assert found["rank_correlation"]["advantage"] > 0.95 and found["rank_correlation"]["top_half"] == 0.0
    assert found["drift"]["top_half"] == 0.0 and found["drift"]["advantage"] > 0.3
    assert found["drift_in_deviations"] > 2
    assert set(found["interests"]) == set(FACTS)
    assert "rank_correlation" not in about_scores(control, flat)
