"""Ask the model to write questions about mails, and account for the cost."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from agent import prompts
from agent.llm_client import json_object, key_for
from agent.llm_client import require_model as require_llm
from agent.question_writing.settings import QuestionSettings
from environment.errors import BadInput

_MAX_PROBLEM_CHARS = 200
# HTTP statuses after which repeating the request is useless.
_REFUSALS = {
    400: "does not accept the request",
    401: "refuses the key; set it in the environment or in .env",
    403: "refuses the key; set it in the environment or in .env",
    404: "is not there; check question_model and question_api_base",
    422: "does not accept the request",
}


class WrittenQuestion(BaseModel):
    """A question as the model wrote it, unchecked."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    question: str
    answer: str
    mail_ids: list[int]
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


def request_for(owner: str, mails: Mapping[int, str], questions: int) -> Request:
    """Return a request for `questions` questions about `mails` (id to text) of the inbox `owner`, as JSON data."""
    case = {"owner": owner, "questions": questions, "mails": [{"id": id, "text": text} for id, text in mails.items()]}
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

    async def write(self, request: Request) -> Reply:
        """Return the first usable reply within `question_attempts`, or a reply without questions if all were unusable.

        Raise BadInput when the model cannot be reached, does not exist, or refuses the key or the request.
        """
        from openai import OpenAIError  # what LiteLLM's errors derive from

        spent, unusable, failure = Spent(), "", ""
        for attempt in range(self.settings.question_attempts):
            if attempt:
                await asyncio.sleep(self.settings.question_backoff * 2 ** (attempt - 1))
            try:
                text, cost = await self._ask(request)
            except OpenAIError as error:
                failure = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_PROBLEM_CHARS]
                if refusal := _REFUSALS.get(getattr(error, "status_code", 0)):
                    raise BadInput(f"{self._who} {refusal} ({failure})") from error
                continue
            spent += cost
            try:
                return Reply(questions=parse_reply(text), spent=spent)
            except ValueError as error:
                unusable = str(error)[:_MAX_PROBLEM_CHARS]
        if unusable:
            return Reply(questions=None, problem=unusable, spent=spent)
        raise BadInput(
            f"{self._who} gave no reply in {self.settings.question_attempts} attempts ({failure}); "
            "the same command resumes after the last finished batch"
        )

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
            timeout=settings.question_timeout,
            num_retries=0,
            api_base=settings.question_api_base,
            **({"api_key": self._api_key} if self._api_key else {}),
        )
        usage = response.usage
        # Like litellm.completion_cost, but None instead of a bare Exception without a price.
        cost = response._hidden_params.get("response_cost")
        spent = Spent(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cost=cost)
        return response.choices[0].message.content or "", spent
