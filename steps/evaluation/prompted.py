"""The model that `baseline_model` names, with the limits of the agent."""

from __future__ import annotations

from collections.abc import Iterable

from agent.evaluation import BASELINES, START, WARM_START
from agent.prompted import PromptedModel
from agent.settings import AgentSettings
from configs.schema import EvaluationConfig
from steps.evaluation.ask_production import PRODUCTION
from training.errors import BadInput

_ROWS = ("base", "base_with_grammar", "trained", WARM_START, START, PRODUCTION, *BASELINES)


def prompted_model(config: EvaluationConfig, settings: AgentSettings) -> PromptedModel | None:
    """Return the configured model to compare with, with the limits of the agent.

    Raises:
        BadInput: another row has its name.
    """
    if config.baseline_model is None:
        return None
    require_own_name(config.baseline_model)
    return PromptedModel(
        model=config.baseline_model,
        api_base=config.baseline_api_base,
        max_tokens=settings.max_tokens,
    )


def require_own_name(model: str, others: Iterable[str] = ()) -> None:
    """Raise BadInput if `baseline_model` has the name of another row, such as one of `others`: they would become one row."""
    if model in (*_ROWS, *others):
        raise BadInput(
            f"baseline_model={model}: another row of the evaluation has this name; write openai/{model} instead"
        )
