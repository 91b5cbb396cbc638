"""Judges decide whether an answer is correct. `exact` is deterministic, `llm` asks a language model.

Evaluation, validation and the verifiable reward of a run use the same judge. With `both`, that is `exact`, and evaluations
ask the language model too.
"""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel

from training.task import RolloutError


class Verdict(BaseModel):
    """Whether an answer agrees with the reference, and the reason in one line."""

    correct: bool
    reason: str
    same_meaning: bool | None = None
    """Whether the language model accepts the answer. None unless both judges were asked."""
    prompt_tokens: int = 0
    """Prompt tokens of the language model, if one was asked."""
    cost: float | None = None
    """US dollars; None without a language model, or where its price is unknown."""


class JudgeError(RolloutError):
    """The judge could not reach a verdict. The run is then an error, not a wrong answer.

    `prompt_tokens` and `cost` are those of the attempts, as in `Verdict`.
    """

    def __init__(self, problem: str, *, prompt_tokens: int = 0, cost: float | None = None) -> None:
        super().__init__(problem)
        self.prompt_tokens = prompt_tokens
        self.cost = cost


class Judge(Protocol):
    """Decides whether `answer` is a correct reply to `question`, given the `reference` answer."""

    async def judge(self, question: str, reference: str, answer: str) -> Verdict:
        """Return the verdict. Raises `JudgeError` when none can be reached."""
        ...
