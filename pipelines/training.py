"""setup_art_model -> train_agent, on the artifacts of a data preparation run."""

from __future__ import annotations

from uuid import UUID

from zenml import pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

from configs.schema import TrainingConfig
from steps.training.setup_art_model import setup_art_model
from steps.training.train_agent import train_agent


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def training_pipeline(config: TrainingConfig, run_key: str, database: UUID, scenarios: UUID) -> None:
    client = Client()
    base = setup_art_model(base_model=config.base_model)
    train_agent(
        config=config,
        run_key=run_key,
        base=base,
        database=client.get_artifact_version(database),
        scenarios=client.get_artifact_version(scenarios),
        start=config.continue_from,
    )
