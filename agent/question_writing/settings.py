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
        default=(), description="addresses to ask about; empty: the largest inbox"
    )
    questions_per_inbox: int = Field(default=100, ge=1, le=100_000, description="questions to keep per inbox")
    max_cost: float | None = Field(
        default=None,
        gt=0,
        description="stop before the next batches would exceed this cost in US dollars; null: no limit",
    )

    @model_validator(mode="after")
    def _extra_parameters_are_extra(self) -> Self:
        for name in self.extra_litellm_params:
            if name in _OURS:
                raise ValueError(
                    f"extra_litellm_params: '{name}' is set by question_model, question_api_base or the project itself"
                )
            if any(word in name.lower() for word in ("key", "secret", "password")):
                raise ValueError(
                    f"extra_litellm_params: '{name}' would be recorded with the run; keys belong in the environment or .env"
                )
        return self
