"""The model that `baseline_model` names, under the agent's limits."""

from __future__ import annotations

from agent.prompted import PromptedModel
from agent.settings import AgentSettings
from configs.schema import EvaluationConfig


def prompted_model(config: EvaluationConfig, settings: AgentSettings) -> PromptedModel | None:
    """The configured model to compare with, under the agent's limits."""
    if config.baseline_model is None:
        return None
    return PromptedModel(
        model=config.baseline_model,
        api_base=config.baseline_api_base,
        max_tokens=settings.max_tokens,
        optional_arguments=settings.optional_arguments,
    )
