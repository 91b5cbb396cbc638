"""Recorded rollouts with a reward, a length and habits, as the alerts see them."""

from __future__ import annotations

from dataclasses import dataclass, field

import art
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs

from training.task import DECISION, SUSPECT

HABITS = ("repeated_calls", "turn_padding", "source_spam", "unread_answer", "unread_source")
SEARCH_HABITS = ("blind_query", "wide_search", "fixed_order")


@dataclass
class Rollout:
    """What one rollout of a simulated policy does, before it is recorded; the defaults are an honest one of three turns."""

    correct: bool
    reward: float
    turns: int = 3
    tokens: int = 120
    surprisal: float = 0.03
    habits: set[str] = field(default_factory=set)


def record(rollout: Rollout, scenario: str, decision: str | None = None) -> art.Trajectory:
    content = [{"token": "token_id:1", "logprob": -rollout.surprisal, "bytes": [], "top_logprobs": []}] * 4
    choice = Choice(
        index=0,
        finish_reason="stop",
        message=ChatCompletionMessage(role="assistant", content="x"),
        logprobs=ChoiceLogprobs.model_validate({"content": content}),
    )
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": scenario}, choice],
        reward=rollout.reward,
        metrics={
            "correct": rollout.correct,
            "turns": rollout.turns,
            "sampled_tokens": rollout.tokens,
            **{f"{SUSPECT}{name}": name in rollout.habits for name in (*HABITS, *SEARCH_HABITS)},
        },
        metadata={
            "scenario_id": scenario,
            "question": f"What about {scenario}?",
            **({DECISION: decision} if decision else {}),
        },
    )
