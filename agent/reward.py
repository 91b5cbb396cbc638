"""The verifiable reward: what an episode is worth when the reference answer and its mails are known.

The structure is the one published for ART-E, generalised to questions that need several mails. Three things differ. In
ART-E a wrong answer earns -1 and silence 0, which teaches a weak policy to be silent before it learns to read. Here
silence never pays more than an answer. Answers are graded by their overlap with the reference, because on real mail
a strict verdict is nearly always the same for all rollouts of a group. And a source counts only if the agent read it, or
saw a passage of it in a search: otherwise a policy that opened the wrong hit learns to cite the next one unseen.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from agent.judges.stated import share_of_facts
from agent.metrics import token_f1
from agent.reward_weights import RewardWeights
from agent.rollout import AgentRun
from environment.models import Scenario
from environment.tools import FINAL_ANSWER, READ, SEARCH

OF_REFERENCE = frozenset({"correct", "overlap", "facts", "found", "read", "cited", "gold_count"})
"""Counts that need the reference answer or its mails, which unlabelled questions lack."""


class Rubric(BaseModel):
    """What the episode did, counted; `found`, `read` and `cited` (seen *and* cited) are fractions of the gold mails."""

    correct: bool
    answered: bool
    malformed: bool
    overlap: float = Field(ge=0, le=1)
    """Token-F1 of the answer and the reference."""
    facts: float = Field(default=0.0, ge=0, le=1)
    """Share of the reference's facts that the answer states (`share_of_facts`); 1 if it is correct."""
    found: float = Field(ge=0, le=1)
    read: float = Field(ge=0, le=1)
    cited: float = Field(ge=0, le=1)
    cited_count: int
    gold_count: int
    invalid_calls: int
    repeated_calls: int
    turns: int


def rubric(run: AgentRun, scenario: Scenario, gold_ids: list[int], correct: bool) -> Rubric:
    """Count what one episode did. `gold_ids` are the short ids of `scenario.message_ids`; `correct` is the judge's
    verdict."""
    gold = set(gold_ids)
    shown = {id for call in run.calls if call.name == SEARCH for id in call.email_ids}
    read = {id for call in run.calls if call.name == READ for id in call.email_ids}
    seen = {id for call in run.calls for id in call.read_ids}
    cited = {id for call in run.calls if call.name == FINAL_ANSWER for id in call.email_ids}
    signatures = [(call.name, str(sorted(call.arguments.items()))) for call in run.calls]
    return Rubric(
        correct=correct,
        answered=run.answer is not None,
        malformed=run.outcome in ("malformed_call", "no_tool_call", "truncated"),
        overlap=token_f1(scenario.answer, run.answer.answer if run.answer else None),
        facts=1.0
        if correct
        else share_of_facts(scenario.question, scenario.answer, run.answer.answer)
        if run.answer
        else 0.0,
        found=len(shown & gold) / max(1, len(gold)),
        read=len(read & gold) / max(1, len(gold)),
        cited=len(cited & seen & gold) / max(1, len(gold)),
        cited_count=len(cited),
        gold_count=len(gold),
        invalid_calls=sum(call.invalid for call in run.calls),
        repeated_calls=len(signatures) - len(set(signatures)),
        turns=run.turns,
    )


def verifiable_reward(counts: Rubric, max_turns: int, weights: RewardWeights) -> float:
    """Return the reward of one counted episode.

    Every answer earns up to `overlap` for the words that it shares with the reference, and up to `facts` for the facts that it
    states of it. A correct one adds `correct`, up
    to `all_sources` for gold mails read and cited, up to `few_sources` for citing few others, and up to `few_turns` for
    brevity. Anything else adds its base (`wrong`, `no_answer`, `malformed`) and partial credit: up to `partial` each
    for gold mails found, read, and both read and cited, and `partial` for no invalid call. Partial credit never depends
    on the number of turns, because that teaches an agent to pad.
    """
    graded = weights.overlap * counts.overlap + weights.facts * counts.facts
    if counts.correct:
        economy = min(1.0, counts.gold_count / counts.cited_count) if counts.cited_count else 0.0
        return (
            graded
            + weights.correct
            + weights.all_sources * counts.cited
            + weights.few_sources * economy
            + weights.few_turns * (1 - counts.turns / max_turns)
        )
    base = weights.malformed if counts.malformed else weights.wrong if counts.answered else weights.no_answer
    return graded + base + weights.partial * (counts.found + counts.read + counts.cited + (counts.invalid_calls == 0))
