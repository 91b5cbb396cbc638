"""Run the learn loop with a softmax policy instead of a language model: do its few e-mails show which facts get
replies?

The policy has a weight per fact, per role and fact, and per place in the list; a policy gradient with group-normalised advantages
updates them. It knows the format, so its rates are an upper bound for a model that still has to learn the format.

Off-policy estimates of the trained policy's reply rate are compared with the truth, which the simulation knows. They use
48 e-mails to train prospects by an untrained policy. The last line is JSON: the means of all figures.

    python -m benchmarks.outreach_signal [--seeds 8] [--iterations 8] [--prospects 4] [--emails 6] [--sends 200] [--rate 2]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict

from tasks.outreach.feedback import BEST_REPLY_RATE, SimulatedProspects
from tasks.outreach.node_scores import NodeScores, SentEmail, TopHalfScores, rank_correlation
from tasks.outreach.off_policy import LoggedChoice, estimate
from tasks.outreach.scenarios import Scenario
from tasks.outreach.settings import OutreachSettings
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from tasks.outreach.task import SENDS_PER_EMAIL

DEFAULTS = OutreachSettings()


class SoftmaxPolicy:
    """Chooses one of the listed facts."""

    def __init__(self) -> None:
        self.weights: defaultdict[object, float] = defaultdict(float)

    @staticmethod
    def _features(role: str, fact: str, place: int) -> tuple[tuple[object, float], ...]:
        return ((fact, 1.0), ((role, fact), 0.5), (place, 1.0))

    def probabilities(self, role: str, listed: list[str]) -> list[float]:
        logits = [sum(self.weights[k] for k, _ in self._features(role, fact, n)) for n, fact in enumerate(listed)]
        exponentials = [math.exp(logit - max(logits)) for logit in logits]
        return [value / sum(exponentials) for value in exponentials]

    def learn(self, role: str, listed: list[str], chosen: int, step: float) -> None:
        for place, (fact, probability) in enumerate(zip(listed, self.probabilities(role, listed), strict=True)):
            for key, share in self._features(role, fact, place):
                self.weights[key] += step * share * ((place == chosen) - probability)


def run(
    seed: int, arguments: argparse.Namespace, *, policy: bool, scores: bool, random_replies: bool
) -> dict[str, float]:
    """Run one learn loop. Return the figures on held-out prospects before and after it."""
    graph = synthetic_graph(seed)
    scenarios = synthetic_scenarios(seed, DEFAULTS.train_prospects, DEFAULTS.test_prospects)
    simulation = SimulatedProspects(graph, scenarios, seed, random_replies=random_replies)
    train, test = ([s for s in scenarios if s.split == split] for split in ("train", "test"))
    chance, writer = random.Random(f"signal-{seed}"), SoftmaxPolicy()
    known, top_half = NodeScores.fresh(graph), TopHalfScores.fresh(graph)
    fresh = known

    def listed(scenario: Scenario, of: NodeScores) -> list[str]:
        facts = [fact.id for fact in graph.facts_of(scenario.seeds[0])]
        return of.ranked(facts, str(chance.random()))[: DEFAULTS.max_neighbours]

    def held_out() -> float:
        rates = []
        for scenario in test:
            for _ in range(20):
                facts = listed(scenario, known if scores else fresh)
                chosen = writer.probabilities(scenario.prospect.role, facts)
                expected = (simulation.reply_probability(scenario.prospect, [fact], 1.0) for fact in facts)
                rates.append(sum(p * rate for p, rate in zip(chosen, expected, strict=True)))
        return statistics.fmean(rates)

    def estimated() -> dict[str, float]:
        """Return the estimates of the trained policy's reply rate from e-mails of an untrained one, minus the truth."""
        untrained, choices, targets = SoftmaxPolicy(), [], []
        for scenario in train * 2:
            facts, role = listed(scenario, fresh), scenario.prospect.role
            logged = untrained.probabilities(role, facts)
            [choice] = chance.choices(range(len(facts)), logged)
            rates = {fact: simulation.reply_probability(scenario.prospect, [fact], 1.0) for fact in facts}
            replies = sum(chance.random() < rates[facts[choice]] for _ in range(arguments.sends))
            made = {"fact": facts[choice], "probability": logged[choice], "reply_rate": replies / arguments.sends}
            choices.append(LoggedChoice(options=tuple(facts), rates=rates, **made))
            targets.append(dict(zip(facts, writer.probabilities(role, facts), strict=True)))
        found = estimate(choices, targets)
        assert found is not None and found.truth is not None
        errors = {f"{name} error": getattr(found, name) - found.truth for name in ("ips", "snips", "doubly_robust")}
        measured = {"logged reply rate": found.logged, "trained policy's reply rate": found.truth, **errors}
        return {**measured, "effective sample size": found.effective_sample_size}

    before = held_out()
    for iteration in range(arguments.iterations):
        sent, played = [], []
        for number in range(arguments.prospects):
            scenario = train[(iteration * arguments.prospects + number) % len(train)]
            group = []
            for _ in range(arguments.emails):
                facts = listed(scenario, known if scores else fresh)
                [choice] = chance.choices(range(len(facts)), writer.probabilities(scenario.prospect.role, facts))
                expected = simulation.reply_probability(scenario.prospect, [facts[choice]], 1.0)
                replies = sum(chance.random() < expected for _ in range(arguments.sends))
                reward = 0.3 + 0.7 * min(1.0, replies / arguments.sends / BEST_REPLY_RATE)
                sent.append(SentEmail(scenario=scenario.id, facts=(facts[choice],), reward=reward))
                group.append((scenario.prospect.role, facts, choice, reward))
            mean, spread = (
                measure([reward for *_, reward in group]) for measure in (statistics.fmean, statistics.pstdev)
            )
            played += [
                (role, facts, choice, (reward - mean) / spread) for role, facts, choice, reward in group if spread
            ]
        for role, facts, choice, advantage in played if policy else ():
            writer.learn(role, facts, choice, arguments.rate * advantage / arguments.emails)
        known, top_half = known.updated(sent), top_half.updated(sent)
    facts = [fact.id for fact in graph.facts]
    truth = [simulation.mean_interest(fact) for fact in facts]
    return {
        "before": before,
        "after": (after := held_out()),
        "ratio": after / before,
        "rank correlation": rank_correlation([known.score(fact) for fact in facts], truth),
        "by top half": rank_correlation([top_half.scores[fact] for fact in facts], truth),
        "largest drift": max(abs(known.score(fact) - 1) for fact in facts),
        "in deviations": max(abs(known.score(fact) - 1) / known.deviation(fact) for fact in facts),
        "largest drift by top half": max(abs(top_half.scores[fact] - 1) for fact in facts),
        **estimated(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = {"seeds": 8, "iterations": 8, "prospects": 4, "emails": 6, "sends": SENDS_PER_EMAIL}
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=2.0, help="step size of the policy")
    arguments = parser.parse_args()
    if too_small := next((name for name in counts if getattr(arguments, name) < 1), None):
        parser.error(f"--{too_small} must be at least 1")
    means: dict[str, dict[str, float]] = {}
    rows = {
        "policy and scores": {"policy": True, "scores": True, "random_replies": False},
        "policy only": {"policy": True, "scores": False, "random_replies": False},
        "scores only": {"policy": False, "scores": True, "random_replies": False},
        "random replies": {"policy": True, "scores": True, "random_replies": True},
    }
    for name, row in rows.items():
        found = [run(seed, arguments, **row) for seed in range(arguments.seeds)]
        columns = {column: [figures[column] for figures in found] for column in found[0]}
        means[name] = {column: statistics.fmean(values) for column, values in columns.items()}
        shown = [
            f"{column} {means[name][column]:.3f} ({min(values):.3f} to {max(values):.3f})"
            for column, values in columns.items()
        ]
        print(f"{name}: {', '.join(shown)}", flush=True)
    print(json.dumps(means))


if __name__ == "__main__":
    main()
