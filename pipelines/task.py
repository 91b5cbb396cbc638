"""Train and evaluate a task of `tasks/`.

setup_art_model -> train_agent; load_trained_model -> run_inference, ask_production -> compute_metrics with the gate.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from zenml import pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

from configs.schema import EvaluationConfig, TrainingConfig


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def task_training_pipeline(config: TrainingConfig, task: str, settings: dict[str, Any], run_key: str) -> None:
    from steps.training.setup_art_model import setup_art_model
    from steps.training.train_task import train_task

    base = setup_art_model(base_model=config.base_model)
    train_task(config=config, task=task, settings=settings, run_key=run_key, base=base, start=config.continue_from)


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def task_evaluation_pipeline(
    config: EvaluationConfig,
    task: str,
    settings: dict[str, Any],
    identity: str,
    title: str,
    checkpoint: UUID,
    warm_start: UUID | None = None,
    production: UUID | None = None,
) -> None:
    from steps.evaluation.ask_task import ask_task, ask_task_production
    from steps.evaluation.compute_metrics import compute_metrics
    from steps.evaluation.load_trained_model import load_trained_model

    client = Client()
    trained = client.get_artifact_version(checkpoint)
    asked = {"config": config.without_gate(), "task": task, "settings": settings, "identity": identity}
    predictions = ask_task(
        **asked,
        base=load_trained_model(checkpoint=trained),
        checkpoint=trained,
        warm_start=client.get_artifact_version(warm_start) if warm_start else None,
    )
    in_production = None
    if production is not None:
        in_production = ask_task_production(**asked, production=client.get_artifact_version(production))
    compute_metrics(
        config=config,
        predictions=predictions,
        checkpoint=trained,
        production=in_production,
        title=title,
        compared_with=str(production) if production else "",
    )
