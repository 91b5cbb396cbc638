"""Ask the model to write questions about mails, and account for the cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from agent import prompts
from agent.question_writing.settings import QuestionSettings
from training.errors import BadInput
from training.llm_client import REQUEST_TIMEOUT, error_text, json_object, key_for, refusal, refuses_content, repeated
from training.llm_client import require_model as require_llm

_MAX_PROBLEM_CHARS = 200


class WrittenQuestion(BaseModel):
    """A question as the model wrote it, unchecked."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    question: str
    answer: str
    mail_ids: list[int]
    """Numbers of the mails in the request."""
    how_realistic: float


class WrittenQuestions(BaseModel):
    """Schema of a reply, for models that support response schemas."""

    questions: list[WrittenQuestion]


class Spent(BaseModel):
    """Tokens and US dollars. `cost` is None where LiteLLM does not know the model's price."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
        )

    def __str__(self) -> str:
        tokens = f"{self.prompt_tokens + self.completion_tokens:,} tokens"
        return f"{tokens}, price unknown" if self.cost is None else f"{tokens}, {self.cost:.4f} USD"


class Reply(BaseModel):
    """The model's reply about a batch: an unchecked list, or None and the problem."""

    questions: list[Any] | None
    problem: str = ""
    spent: Spent


class Request(BaseModel):
    """The prompt for a batch. Equal mails and prompts are the same request."""

    system: str
    user: str

    @property
    def digest(self) -> str:
        """SHA-256 of the request."""
        return hashlib.sha256(json.dumps([self.system, self.user]).encode()).hexdigest()


def request_for(owner: str, mails: Sequence[str], questions: int) -> Request:
    """Return a request for `questions` questions about `mails` (their texts) of the inbox `owner`, as JSON data.

    The mails are numbered from 1, because ids of the database change with new mail and a changed request is paid for again.
    """
    numbered = [{"id": number, "text": text} for number, text in enumerate(mails, start=1)]
    case = {"owner": owner, "questions": questions, "mails": numbered}
    return Request(system=prompts.load("write_questions"), user=json.dumps(case, ensure_ascii=False))


def parse_reply(text: str) -> list[Any]:
    """Return the list of questions in a reply, which may be wrapped in prose or a code fence. Raise ValueError."""
    questions = json_object(text).get("questions")
    if not isinstance(questions, list):
        raise ValueError("no list of questions in the JSON object")
    return questions


def require_model(settings: QuestionSettings) -> None:
    """Raise BadInput when LiteLLM knows no provider for the model or its key is missing, before anything is spent."""
    require_llm(
        settings.question_model,
        settings.question_api_base,
        setting="question_model",
        hint="question_api_base names a self-hosted server",
    )


class QuestionAuthor:
    """Asks a LiteLLM model for questions about mails."""

    def __init__(self, settings: QuestionSettings) -> None:
        self.settings = settings
        self._api_key = key_for(settings.question_model, settings.question_api_base)

    async def write(self, request: Request, budget: float | None = None) -> Reply:
        """Return the first usable reply, or a reply without questions if all were unusable.

        After an unusable reply, ask again only if another one of the same cost stays within `budget` (US dollars).

        Raise BadInput when the model cannot be reached, does not exist, or refuses the key or the request.
        """
        from openai import OpenAIError  # what LiteLLM's errors derive from

        spent, unusable, attempts = Spent(), "", 0

        async def ask() -> list[Any] | None:
            nonlocal spent, unusable, attempts
            attempts += 1
            text, cost = await self._ask(request)
            spent += cost
            try:
                return parse_reply(text)
            except ValueError as error:
                unusable = str(error)[:_MAX_PROBLEM_CHARS]
                if _affords(budget, spent + cost):
                    raise
                return None

        try:
            questions = await repeated(ask)
        except (OpenAIError, ValueError) as error:
            if refused := refusal(error, "question_model"):
                raise BadInput(f"{self._who} {refused} ({error_text(error)})") from error
            if refuses_content(error):
                unusable = error_text(error)
            if not unusable:
                raise BadInput(
                    f"{self._who} gave no reply in {attempts} attempts ({error_text(error)}); "
                    "the same command resumes after the last finished batch"
                ) from error
            return Reply(questions=None, problem=unusable, spent=spent)
        return Reply(questions=questions, problem=unusable if questions is None else "", spent=spent)

    @property
    def _who(self) -> str:
        where = f" at {self.settings.question_api_base}" if self.settings.question_api_base else ""
        return f"question_model {self.settings.question_model}{where}"

    async def _ask(self, request: Request) -> tuple[str, Spent]:
        import litellm

        settings = self.settings
        schema = litellm.supports_response_schema(settings.question_model)
        response = await litellm.acompletion(
            **{
                "response_format": WrittenQuestions if schema else {"type": "json_object"},
                "drop_params": True,
                **settings.extra_litellm_params,
            },
            model=settings.question_model,
            messages=[{"role": "system", "content": request.system}, {"role": "user", "content": request.user}],
            timeout=REQUEST_TIMEOUT,
            num_retries=0,
            api_base=settings.question_api_base,
            **({"api_key": self._api_key} if self._api_key else {}),
        )
        usage = response.usage
        # Like litellm.completion_cost, but None instead of a bare Exception without a price.
        cost = response._hidden_params.get("response_cost")
        spent = Spent(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cost=cost)
        return response.choices[0].message.content or "", spent


def _affords(budget: float | None, total: Spent) -> bool:
    """Return whether `total` is within the budget. An unknown price is within none."""
    return budget is None or (total.cost is not None and total.cost <= budget)
