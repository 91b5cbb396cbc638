"""The language-model judge: asks whether an answer says what the reference says, and takes yes or no as JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ValidationError

from agent import prompts
from agent.judges import JudgeError, Verdict
from environment.mail_text import storable
from training.llm_client import REQUEST_TIMEOUT, error_text, json_objects, price_of, repeated


class _Reply(BaseModel):
    reasoning: str = ""
    accept: bool


class _Spent(BaseModel):
    """Tokens and cost of all attempts at one verdict."""

    prompt_tokens: int = 0
    cost: float | None = None


class LLMJudge:
    """`Judge` that asks any LiteLLM model, at temperature 0 where the model has one."""

    def __init__(
        self,
        model: str = "openai/gpt-4.1",
        *,
        api_base: str | None = None,
        api_key: str | None = None,
    ) -> None:
        """Without `api_base` and `api_key`, the environment variables of the provider count."""
        self.model = model
        self.api_base = api_base
        self.api_key = api_key

    async def judge(self, question: str, reference: str, answer: str) -> Verdict:
        """Return the verdict; an empty answer is wrong without asking. Raises `JudgeError` if no reply is usable."""
        if not answer.strip():
            return Verdict(correct=False, reason="the answer is empty")
        from openai import OpenAIError  # what LiteLLM's errors derive from; imported late like LiteLLM itself

        spent, attempts = _Spent(), 0

        async def ask() -> _Reply:
            nonlocal spent, attempts
            attempts += 1
            response = await self._ask(question, reference, answer)
            spent = _Spent(
                prompt_tokens=spent.prompt_tokens + response.usage.prompt_tokens,
                cost=_sum(spent.cost, price_of(response)),
            )
            return _parse(response.choices[0].message.content or "")

        try:
            reply = await repeated(ask)
        except (OpenAIError, ValueError) as error:
            problem = error_text(error) if isinstance(error, OpenAIError) else f"unusable reply ({error})"
            raise JudgeError(
                f"{self.model} gave no verdict in {attempts} attempt{'s' if attempts > 1 else ''}: {problem}",
                **spent.model_dump(),
            ) from error
        # Half of an escaped character is valid in the JSON of a reply, and not in any file.
        reason = storable(" ".join(reply.reasoning.split())[:300])
        return Verdict(correct=reply.accept, reason=reason, **spent.model_dump())

    async def _ask(self, question: str, reference: str, answer: str) -> Any:
        import litellm  # seconds of import that only this judge needs

        case = {"question": question, "reference": reference, "candidate": answer}
        return await litellm.acompletion(
            model=self.model,
            messages=[
                {"role": "system", "content": prompts.load("judge")},
                {"role": "user", "content": json.dumps(case, ensure_ascii=False)},
            ],
            response_format={"type": "json_object"},
            temperature=0.0,
            drop_params=True,
            timeout=REQUEST_TIMEOUT,
            num_retries=0,
            api_base=self.api_base,
            api_key=self.api_key,
        )


def _sum(known: float | None, more: float | None) -> float | None:
    return more if known is None else known + (more or 0.0)


def _parse(text: str) -> _Reply:
    """Return the verdict of a reply, which some models wrap in prose or a code fence. Raises ValueError.

    One that the prose quotes from the candidate must not win, so several verdicts have to agree.
    """
    verdicts = []
    for found in json_objects(text):
        with suppress(ValidationError):
            verdicts.append(_Reply.model_validate(found))
    if not verdicts:
        raise ValueError("no verdict in the JSON object")
    if len({verdict.accept for verdict in verdicts}) > 1:
        raise ValueError("verdicts that contradict each other")
    return verdicts[-1]
