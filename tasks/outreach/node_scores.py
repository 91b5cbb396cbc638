"""Scores of the graph's facts: a decayed Beta posterior per node, updated by the advantages of e-mails.

The score of a node starts at 1 and stays between 0 and 2: it is twice the mean of its posterior. A fact that an e-mail
states wins and loses parts of a trial according to the e-mail's advantage. The advantage is the reward minus the reward
that an e-mail with a neutral fact (score 1) would have got from the same prospect. Equal rewards are half a win and
half a loss, and leave all scores at 1. So do, on average, rewards that do not depend on the fact.

The mean reward of the prospect's e-mails would be the wrong baseline, because it rises with the policy. A good fact
that nearly all e-mails state would fall back to 1, and the second best would fall below it.

`TopHalfScores` is a simpler rule, for comparison. It raises the facts that the better half of all e-mails cites and
lets the others decay. Its scores change even if all rewards are equal, and a fact rises merely because it is cited
often.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from tasks.outreach.graph import KnowledgeGraph

DECAY = 0.97
"""Share of the evidence that is kept per iteration: half of it is forgotten after 23 iterations."""
BOUNDS = (0.0, 2.0)
START = 1.0
_PRIOR = 4.0
"""Weight of the prior in trials."""
_CLIP = 0.5
"""Advantages beyond this, in units of the reward, are a full win or a full loss."""


class SentEmail(BaseModel):
    """The part of an e-mail that an update needs: its prospect's scenario, the facts that it states, and its reward."""

    model_config = ConfigDict(frozen=True)

    scenario: str
    facts: tuple[str, ...]
    reward: float


class NodeScores(BaseModel):
    """The state after some iterations; `wins` and `losses` are decayed trials per node."""

    model_config = ConfigDict(frozen=True)

    rule: Literal["advantage"] = "advantage"
    decay: float
    wins: dict[str, float]
    losses: dict[str, float]

    @classmethod
    def fresh(cls, graph: KnowledgeGraph, decay: float = DECAY) -> Self:
        """Every node at 1.0."""
        ids = [node.id for node in graph.nodes]
        return cls(decay=decay, wins=dict.fromkeys(ids, 0.0), losses=dict.fromkeys(ids, 0.0))

    def score(self, node_id: str) -> float:
        wins, losses = self.wins[node_id] + _PRIOR / 2, self.losses[node_id] + _PRIOR / 2
        return BOUNDS[1] * wins / (wins + losses)

    def deviation(self, node_id: str) -> float:
        """Standard deviation of the score's posterior."""
        a, b = self.wins[node_id] + _PRIOR / 2, self.losses[node_id] + _PRIOR / 2
        return BOUNDS[1] * math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))

    @property
    def scores(self) -> dict[str, float]:
        return {node_id: self.score(node_id) for node_id in self.wins}

    def updated(self, emails: Iterable[SentEmail]) -> NodeScores:
        """Return the scores after an iteration with these e-mails. E-mails that state no fact are ignored."""
        wins = {node_id: self.decay * value for node_id, value in self.wins.items()}
        losses = {node_id: self.decay * value for node_id, value in self.losses.items()}
        for email, advantage, trials in self._advantages([email for email in emails if email.facts]):
            won = 0.5 + advantage / (2 * _CLIP)
            for fact in email.facts:
                wins[fact] += trials * won / len(email.facts)
                losses[fact] += trials * (1 - won) / len(email.facts)
        return self.model_copy(update={"wins": wins, "losses": losses})

    def _advantages(self, emails: Sequence[SentEmail]) -> list[tuple[SentEmail, float, float]]:
        """Return (e-mail, advantage, trials) tuples. The weight of an e-mail is the share of its prospect's e-mails that state
        other facts, because without a comparison it is not informative.
        """
        by_scenario: dict[str, list[SentEmail]] = {}
        for email in emails:
            by_scenario.setdefault(email.scenario, []).append(email)
        found = []
        for group in by_scenario.values():
            worth = [statistics.fmean((self.score(fact) - START) * _CLIP for fact in email.facts) for email in group]
            neutral = statistics.fmean(email.reward - value for email, value in zip(group, worth, strict=True))
            for email in group:
                trials = sum(set(other.facts) != set(email.facts) for other in group) / len(group)
                found.append((email, max(-_CLIP, min(_CLIP, email.reward - neutral)), trials))
        return found

    def ranked(self, node_ids: Sequence[str], seed: str) -> list[str]:
        """Sort by score, best first. Scores that agree to one decimal are in random order, because smaller differences
        are noise.
        """
        shuffled = sorted(node_ids)
        random.Random(f"order-{seed}").shuffle(shuffled)
        return sorted(shuffled, key=lambda node_id: -round(self.score(node_id), 1))

    def drawn(self, node_ids: Sequence[str], seed: str) -> list[str]:
        """Sort by scores drawn from the posteriors, best first (Thompson sampling).

        Nodes that few e-mails stated so far come first now and then.
        """
        chance = random.Random(f"draw-{seed}")
        draws = {
            node_id: chance.betavariate(self.wins[node_id] + _PRIOR / 2, self.losses[node_id] + _PRIOR / 2)
            for node_id in sorted(node_ids)
        }
        return sorted(draws, key=lambda node_id: -draws[node_id])


class TopHalfScores(BaseModel):
    """The top-half rule, for comparison only."""

    model_config = ConfigDict(frozen=True)

    rule: Literal["top_half"] = "top_half"
    decay: float
    scores: dict[str, float]

    @classmethod
    def fresh(cls, graph: KnowledgeGraph, decay: float = DECAY) -> Self:
        return cls(decay=decay, scores={node.id: START for node in graph.nodes})

    def updated(self, emails: Iterable[SentEmail]) -> TopHalfScores:
        """Raise the facts of the better half by a tenth of the reward per e-mail, and let the others decay towards
        0.
        """
        ordered = sorted(emails, key=lambda email: -email.reward)
        raised: dict[str, float] = {}
        for email in ordered[: math.ceil(len(ordered) / 2)]:
            for fact in email.facts:
                raised[fact] = raised.get(fact, 0.0) + 0.1 * email.reward
        return self.model_copy(
            update={
                "scores": {
                    node_id: min(BOUNDS[1], score + raised[node_id]) if node_id in raised else score * self.decay
                    for node_id, score in self.scores.items()
                }
            }
        )


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation; ties share their mean rank. 0 when one side is constant."""
    ranks = [_ranks(values) for values in (first, second)]
    if any(len(set(values)) < 2 for values in ranks):
        return 0.0
    return statistics.correlation(ranks[0], ranks[1])


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def read_scores(path: Path) -> NodeScores:
    return NodeScores.model_validate_json(path.read_text(encoding="utf-8"))
