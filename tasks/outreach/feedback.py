"""Simulated feedback: a funnel with published base rates, and prospects with hidden interests. No real person is
involved.

An e-mail is sent to 200 recipients like its prospect. Each opens it with the published open rate of their company's
size, and replies with probability

    p = sigmoid(base(size) + mean interest in the facts that the e-mail states + QUALITY * (quality - 1))

* `base(size)`: published reply rates fall with the size of the company. They are scaled so that an e-mail of quality 1 which states
  one random fact gets 3.4% on average, the published mean. The best 10% of campaigns get 10.7%.
* Interest is hidden. It consists of an appeal of each fact, evenly spread over the facts of a product, and a taste of
each role. The mean over facts makes weak facts dilute a strong one.
* An e-mail that states no fact has `NO_FACT` in place of an interest. No e-mail gets no reply.

Opens do not depend on the e-mail: mail clients prefetch, so an open says little.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from tasks.outreach.email import EmailCheck
from tasks.outreach.graph import KnowledgeGraph
from tasks.outreach.scenarios import Prospect, Scenario

if TYPE_CHECKING:
    import art

MEAN_REPLY_RATE, BEST_REPLY_RATE = 0.034, 0.107
"""Published for cold e-mail in 2026 (Instantly): the mean, and what the best 10% of campaigns get."""
RATES_BY_SIZE = (
    (50, 0.512, 0.031),
    (200, 0.458, 0.024),
    (1000, 0.403, 0.019),
    (5000, 0.357, 0.014),
    (math.inf, 0.294, 0.009),
)
"""Most employees, open rate, reply rate: published in 2026 by company size. Only the ratios of the reply rates are used."""
APPEAL, TASTE = 0.8, 0.4
"""Standard deviation of a fact's appeal, and size of a role's like or dislike of a fact, in logits."""
QUALITY = 1.5
NO_FACT = -1.5


class Feedback(BaseModel):
    """Opens and replies to one e-mail. `expected` is the reply probability in the simulation, or None."""

    model_config = ConfigDict(frozen=True)

    sends: int
    opens: float
    replies: float
    """Whole numbers if e-mails were sent, expected values if they are estimated."""
    expected: float | None = None

    @property
    def reply_rate(self) -> float:
        return self.replies / self.sends if self.sends else 0.0

    @property
    def open_rate(self) -> float:
        return self.opens / self.sends if self.sends else 0.0


class SimulatedProspects:
    """Hidden interests of all prospects, and their replies. With `random_replies`, a control, interests have no
    effect.
    """

    def __init__(
        self, graph: KnowledgeGraph, scenarios: Sequence[Scenario], seed: int, *, random_replies: bool = False
    ) -> None:
        chance = random.Random(f"interests-{seed}")
        self._seed = seed
        self._appeal: dict[str, float] = {}
        products = [node.id for node in graph.nodes if node.type == "product"]
        # Facts of a product form a ladder, so that there is always a best one; those without a product form one more.
        for ladder in [*(graph.facts_of(product) for product in products), graph.facts]:
            ids = [node.id for node in ladder if node.id not in self._appeal]
            steps = [NormalDist().inv_cdf((rung + 0.5) / len(ids)) for rung in range(len(ids))]
            chance.shuffle(steps)
            self._appeal |= {id: 0.0 if random_replies else APPEAL * step for id, step in zip(ids, steps, strict=True)}
        roles = sorted({scenario.prospect.role for scenario in scenarios})
        tastes = {(role, node.id): chance.choice((-TASTE, TASTE)) for role in roles for node in graph.facts}
        self._taste = dict.fromkeys(tastes, 0.0) if random_replies else tastes
        self._shift = self._calibrated(scenarios)

    def _calibrated(self, scenarios: Sequence[Scenario]) -> float:
        """Return the logit to add so that one random fact in a good e-mail gets the published mean reply rate."""
        low, high = -5.0, 5.0
        for _ in range(50):
            self._shift = (low + high) / 2
            rates = [self.reply_probability(s.prospect, [fact], 1.0) for s in scenarios for fact in self._appeal]
            low, high = (low, self._shift) if fmean(rates) > MEAN_REPLY_RATE else (self._shift, high)
        return (low + high) / 2

    def interest(self, role: str, fact: str) -> float:
        """Return the hidden interest of a role in a fact, in logits."""
        return self._appeal[fact] + self._taste.get((role, fact), 0.0)

    def mean_interest(self, fact: str) -> float:
        """Return the hidden interest in a fact, averaged over all roles."""
        tastes = [taste for (_, of), taste in self._taste.items() if of == fact]
        return self._appeal[fact] + (fmean(tastes) if tastes else 0.0)

    def reply_probability(self, prospect: Prospect, facts: Sequence[str], quality: float) -> float:
        """Return the probability of a reply to an e-mail that states `facts`, in closed form."""
        interest = fmean(self.interest(prospect.role, fact) for fact in facts) if facts else NO_FACT
        logit = _logit(_rates(prospect.employees)[1]) + self._shift + interest + QUALITY * (quality - 1)
        return 1 / (1 + math.exp(-logit))

    def send(self, scenario: Scenario, check: EmailCheck | None, sends: int, message_id: str) -> Feedback:
        """Return the feedback on an e-mail, deterministic per message id. A rollout without an e-mail gets none."""
        if check is None:
            return Feedback(sends=sends, opens=0, replies=0, expected=0.0)
        expected = self.reply_probability(scenario.prospect, check.stated, check.quality)
        chance = random.Random(f"replies-{self._seed}-{message_id}")
        opened = _rates(scenario.prospect.employees)[0]
        opens, replies = (sum(chance.random() < rate for _ in range(sends)) for rate in (opened, expected))
        return Feedback(sends=sends, opens=opens, replies=replies, expected=expected)


def feedback_reward(trajectory: art.Trajectory) -> float:
    """Return the reward for replies and opens, between 0 and 1: 1 is the reply rate of the best campaigns. See `reward_function`."""
    replies = float(trajectory.metrics.get("reply_rate", 0.0)) / BEST_REPLY_RATE
    opens = float(trajectory.metrics.get("open_rate", 0.0)) * float(trajectory.metrics.get("open_weight", 0.0))
    return min(1.0, replies + opens)


def _rates(employees: int) -> tuple[float, float]:
    """Return the open and reply rates for a company of this size."""
    return next((opened, replied) for most, opened, replied in RATES_BY_SIZE if employees <= most)


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
