"""Settings of question writing: the model, the number of questions, and limits on the cost."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_OURS = ("model", "messages", "api_base", "stream", "timeout", "num_retries")


class QuestionSettings(BaseModel):
    """Settings of question writing. Costs are in US dollars, times in seconds."""

    model_config = ConfigDict(frozen=True)

    question_model: str = Field(
        default="openai/gpt-4.1", min_length=1, description="LiteLLM name of the LLM that writes"
    )
    question_api_base: str | None = Field(
        default=None, description="base URL of a self-hosted OpenAI-compatible server"
    )
    extra_litellm_params: dict[str, Any] = Field(
        default_factory=dict, description="more arguments of litellm.completion, such as temperature"
    )

    question_inboxes: tuple[str, ...] = Field(
        default=(), description="addresses to ask about; empty: the largest inboxes"
    )
    largest_inboxes: int = Field(
        default=1, ge=1, le=10_000, description="number of largest inboxes, if question_inboxes names none"
    )
    questions_per_inbox: int = Field(default=100, ge=1, le=100_000, description="questions to keep per inbox")
    mails_per_batch: int = Field(default=10, ge=1, le=200, description="mails that the LLM sees at once")
    questions_per_batch: int = Field(
        default=4, ge=1, le=50, description="questions that the LLM is asked for per batch"
    )
    question_min_realism: float = Field(default=0.5, ge=0, le=1, description="minimum how_realistic of a kept question")

    max_questions: int | None = Field(
        default=None, ge=1, description="maximum number of questions in all; null: no limit beyond questions_per_inbox"
    )
    max_cost: float | None = Field(
        default=None,
        gt=0,
        description="stop before the next batches would exceed this cost in US dollars; null: no limit",
    )

    question_concurrency: int = Field(default=4, ge=1, le=64, description="batches asked about at the same time")
    question_attempts: int = Field(default=5, ge=1, le=20, description="requests per batch until a reply is usable")
    question_backoff: float = Field(
        default=2.0, ge=0, le=60, description="seconds before the second request, doubled before each further one"
    )
    question_timeout: float = Field(default=120.0, gt=0, le=3600, description="seconds per request")

    @model_validator(mode="after")
    def _extra_parameters_are_extra(self) -> Self:
        for name in self.extra_litellm_params:
            if name in _OURS:
                raise ValueError(f"extra_litellm_params: '{name}' is set by other settings (question_...)")
            if any(word in name.lower() for word in ("key", "secret", "password")):
                raise ValueError(
                    f"extra_litellm_params: '{name}' would be recorded with the run; keys belong in the environment or .env"
                )
        return self
