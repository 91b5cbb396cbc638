"""The model that `baseline_model` names, with the limits of the agent."""

from __future__ import annotations

from agent.prompted import PromptedModel
from agent.settings import AgentSettings
from configs.schema import EvaluationConfig


def prompted_model(config: EvaluationConfig, settings: AgentSettings) -> PromptedModel | None:
    """Return the configured model to compare with, with the limits of the agent."""
    if config.baseline_model is None:
        return None
    return PromptedModel(
        model=config.baseline_model,
        api_base=config.baseline_api_base,
        max_tokens=settings.max_tokens,
    )
