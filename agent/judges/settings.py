"""Settings of the judge that decides whether an answer is correct."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.judges import Judge, Verdict
from agent.judges.exact import ExactJudge
from agent.judges.llm import LLMJudge
from training.llm_client import key_for, require_model, require_reply


class JudgeSettings(BaseModel):
    """The judge of a run, used by the verifiable reward, validation and the final evaluation."""

    model_config = ConfigDict(frozen=True)

    judge: Literal["exact", "llm", "both"] = Field(
        default="exact",
        description="judge of answers in training and evaluation: exact compares deterministically, llm asks a language model. "
        "both: exact decides, and an evaluation also shows the share that the language model accepts",
    )
    judge_model: str = Field(default="openai/gpt-4.1", description="LiteLLM name of the LLM judge")
    judge_api_base: str | None = Field(default=None, description="base URL of a self-hosted OpenAI-compatible judge")

    def require_judge(self) -> None:
        """Raise `BadInput` when the judge cannot be asked: unknown provider, missing or wrong key, or no reply."""
        if self.judge == "exact":
            return
        require_model(
            self.judge_model,
            self.judge_api_base,
            setting="judge_model",
            needed_by=f"judge={self.judge} asks {self.judge_model}, which",
            hint="judge=exact needs no key, judge_api_base names a self-hosted judge",
        )
        require_reply(self.judge_model, self.judge_api_base, setting="judge_model")


def open_judge(settings: JudgeSettings) -> Judge:
    """Return the configured judge."""
    if settings.judge == "exact":
        return ExactJudge()
    api_key = key_for(settings.judge_model, settings.judge_api_base)
    asked = LLMJudge(settings.judge_model, api_base=settings.judge_api_base, api_key=api_key)
    return asked if settings.judge == "llm" else _Both(asked)


class _Both:
    """`Judge` whose verdict is that of `exact`. It also says whether a language model accepts the answer."""

    def __init__(self, asked: LLMJudge) -> None:
        self._asked = asked

    async def judge(self, question: str, reference: str, answer: str) -> Verdict:
        verdict = await ExactJudge().judge(question, reference, answer)
        opinion = await self._asked.judge(question, reference, answer)
        costs = {"prompt_tokens": opinion.prompt_tokens, "cost": opinion.cost}
        return verdict.model_copy(update={"same_meaning": opinion.correct, **costs})
