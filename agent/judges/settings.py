"""Settings of the judge that decides whether an answer is correct."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.judges import Judge
from agent.judges.exact import ExactJudge
from agent.judges.llm import LLMJudge
from environment.errors import BadInput


class JudgeSettings(BaseModel):
    """The judge of a run, used by the verifiable reward, validation and the final evaluation."""

    model_config = ConfigDict(frozen=True)

    judge: Literal["exact", "llm"] = Field(
        default="exact",
        description="judge of answers in training and evaluation: exact compares deterministically, llm asks a language model",
    )
    judge_model: str = Field(default="openai/gpt-4.1", description="LiteLLM name of the LLM judge")
    judge_api_base: str | None = Field(default=None, description="base URL of a self-hosted OpenAI-compatible judge")

    def require_judge(self) -> None:
        """Raise `BadInput` when the judge cannot be asked: unknown provider, or a missing key."""
        if self.judge == "exact":
            return
        import litellm  # seconds of import that only the LLM judge needs

        litellm.suppress_debug_info = True  # the error below says it in one line
        name = f"judge_model={self.judge_model}"
        try:
            litellm.get_llm_provider(model=self.judge_model, api_base=self.judge_api_base)
        except litellm.exceptions.BadRequestError as error:
            raise BadInput(
                f"{name} names no provider that LiteLLM knows; write provider/model, for example openai/gpt-4.1, or openai/NAME "
                "and judge_api_base for a self-hosted server"
            ) from error
        if self.judge_api_base is None and (missing := missing_keys(self.judge_model)):
            raise BadInput(
                f"judge=llm asks {self.judge_model}, which needs {' and '.join(missing)} in the environment or in .env; "
                "judge=exact needs no key, judge_api_base names a self-hosted judge"
            )


def open_judge(settings: JudgeSettings) -> Judge:
    """Return the configured judge."""
    if settings.judge == "exact":
        return ExactJudge()
    # LiteLLM insists on a key, which a self-hosted server may not need.
    keyless = settings.judge_api_base is not None and missing_keys(settings.judge_model)
    return LLMJudge(settings.judge_model, api_base=settings.judge_api_base, api_key="none" if keyless else None)


def missing_keys(model: str) -> list[str]:
    """Return the environment variables that LiteLLM needs for a model and does not find."""
    import litellm

    missing: list[str] = litellm.validate_environment(model)["missing_keys"]
    return missing
