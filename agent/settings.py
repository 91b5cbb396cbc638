"""Prompt and limits of an episode, and what is demonstrated."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from environment.tools import PASSAGE_HITS

EMAIL_SEARCH = "email-search"
"""Name of the task."""

_CHARS_PER_TOKEN = 4

DECISIONS = ("query", "open", "answer")
"""Its decisions: see `agent.decisions`."""
USUAL_DECISIONS = ("query", "answer")
"""Those that a run compares by default: replies seldom differ in which hit they open."""


class DemonstrationSettings(BaseModel):
    """What the demonstrations of the warm start show. The rest is for GRPO to find out."""

    model_config = ConfigDict(frozen=True)

    name_queries: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="fraction of demonstrations that search by name only, among those whose question contains names; the others "
        "search for the whole question",
    )
    max_wrong_reads: int = Field(
        default=0,
        ge=0,
        le=9,
        description="mails that a demonstration may open after its first search before the right one; 0: only questions whose "
        "first hit is the right mail are demonstrated",
    )
    demonstrated_hits: Literal["first", "gold", "even"] = Field(
        default="first",
        description="which hit a demonstration opens: the first (see max_wrong_reads); gold: the right mail where it is one of the "
        "first three; even: the same, with the right mail moved to any of the three places equally often",
    )


class AgentSettings(BaseModel):
    """Prompt and limits of one episode, the same in training, evaluation and service."""

    model_config = ConfigDict(frozen=True)

    system_prompt: str | None = Field(
        default=None,
        min_length=1,
        max_length=50_000,
        description="instructions to the agent; null: agent/prompts/system.txt",
    )

    max_turns: int = Field(default=6, ge=1, le=50, description="model replies per question")
    max_tokens: int = Field(default=96, ge=8, le=4096, description="sampled tokens per reply")
    max_results: int = Field(default=3, ge=1, le=20, description="mails per search")
    read_chars: int = Field(
        default=750, ge=100, le=20_000, description="characters of a mail's body that one read shows"
    )
    passage_chars: int = Field(
        default=0,
        ge=0,
        le=2000,
        description="characters of the matching passage that a search shows of each of its first three hits, so that the "
        "model can choose before it opens one; 0: eight words",
    )

    def require_room(self, max_context: int) -> None:
        """Raise ValueError when the passages of a search, a read and a reply alone would fill `max_context` tokens."""
        needed = (PASSAGE_HITS * self.passage_chars + self.read_chars) // _CHARS_PER_TOKEN + self.max_tokens
        if self.passage_chars and needed >= max_context:
            raise ValueError(
                f"passage_chars={self.passage_chars}: {PASSAGE_HITS} passages, a read of read_chars={self.read_chars} and a reply of "
                f"max_tokens={self.max_tokens} take about {needed} tokens of max_context={max_context}: lower them, or raise max_context"
            )
