"""setup_art_model -> train_coding_agent; evaluate_coding_agent on its checkpoint -> compute_metrics with the gate."""

from __future__ import annotations

from uuid import UUID

from zenml import pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

from configs.schema import CodingConfig, EvaluationConfig, TrainingConfig


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def coding_training_pipeline(config: TrainingConfig, coding: CodingConfig, run_key: str) -> None:
    from steps.coding.train_coding_agent import train_coding_agent
    from steps.training.setup_art_model import setup_art_model

    base = setup_art_model(base_model=config.base_model)
    train_coding_agent(config=config, coding=coding, run_key=run_key, base=base)


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def coding_evaluation_pipeline(
    config: EvaluationConfig, coding: CodingConfig, checkpoint: UUID, warm_start: UUID, production: UUID | None = None
) -> None:
    from steps.coding.evaluate_coding_agent import ask_coding_production, evaluate_coding_agent
    from steps.evaluation.compute_metrics import compute_metrics

    client = Client()
    trained = client.get_artifact_version(checkpoint)
    predictions = evaluate_coding_agent(
        config=config, coding=coding, checkpoint=trained, warm_start=client.get_artifact_version(warm_start)
    )
    in_production = None
    if production is not None:
        in_production = ask_coding_production(
            config=config, coding=coding, production=client.get_artifact_version(production)
        )
    compute_metrics(
        config=config,
        predictions=predictions,
        checkpoint=trained,
        production=in_production,
        title="Coding agent",
        compared_with=str(production) if production else "",
    )
