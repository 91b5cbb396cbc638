"""load_trained_model -> run_inference -> compute_metrics: every policy on the same held-out questions.

When another version is in production, ask_production asks it those questions too, for the gate in compute_metrics.
"""

from __future__ import annotations

from uuid import UUID

from zenml import pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

from configs.schema import EvaluationConfig
from steps.evaluation.ask_production import ask_production
from steps.evaluation.compute_metrics import compute_metrics
from steps.evaluation.load_trained_model import load_trained_model
from steps.evaluation.run_inference import run_inference


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def evaluation_pipeline(
    config: EvaluationConfig,
    database: UUID,
    scenarios: UUID,
    checkpoint: UUID,
    warm_start: UUID | None = None,
    base_model: str | None = None,
    production: str | None = None,
) -> None:
    client = Client()
    trained = client.get_artifact_version(checkpoint)
    base = load_trained_model(checkpoint=trained, base_model=base_model)
    data = {
        "database": client.get_artifact_version(database),
        "scenarios": client.get_artifact_version(scenarios),
    }
    predictions = run_inference(
        config=config.without_gate(),
        base=base,
        checkpoint=trained,
        warm_start=client.get_artifact_version(warm_start) if warm_start else None,
        **data,
    )
    in_production = ask_production(config=config.without_gate(), production=production, **data) if production else None
    compute_metrics(
        config=config,
        predictions=predictions,
        checkpoint=trained,
        production=in_production,
        compared_with=production or "",
    )
