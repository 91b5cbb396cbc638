"""setup_art_model -> train_workbench_agent; load_trained_model -> evaluate_workbench_agent -> compute_metrics with the gate."""

from __future__ import annotations

from uuid import UUID

from zenml import pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

from configs.schema import EvaluationConfig, TrainingConfig, WorkbenchConfig


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def workbench_training_pipeline(config: TrainingConfig, office: WorkbenchConfig, run_key: str) -> None:
    from steps.training.setup_art_model import setup_art_model
    from steps.workbench import train_workbench_agent

    base = setup_art_model(base_model=config.base_model)
    train_workbench_agent(config=config, office=office, run_key=run_key, base=base)


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def workbench_evaluation_pipeline(
    config: EvaluationConfig,
    office: WorkbenchConfig,
    content: str,
    checkpoint: UUID,
    warm_start: UUID | None = None,
) -> None:
    from steps.evaluation.compute_metrics import compute_metrics
    from steps.evaluation.load_trained_model import load_trained_model
    from steps.workbench import evaluate_workbench_agent

    client = Client()
    trained = client.get_artifact_version(checkpoint)
    predictions = evaluate_workbench_agent(
        config=config.without_gate(),
        office=office,
        content=content,
        base=load_trained_model(checkpoint=trained),
        checkpoint=trained,
        warm_start=client.get_artifact_version(warm_start) if warm_start else None,
    )
    compute_metrics(config=config, predictions=predictions, checkpoint=trained, title="Office agent (WorkBench)")
