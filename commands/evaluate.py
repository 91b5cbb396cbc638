"""`--pipeline eval`: evaluate a training run or a checkpoint and print the closing table."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from zenml.client import Client
from zenml.models import ArtifactVersionResponse, ModelVersionResponse

from cluster.placement import runs_elsewhere
from commands.agent_runs import evaluate_by
from commands.continue_from import artifact_of
from commands.data import DataRun, data_in_store
from commands.train import TrainedRun
from configs.config import Config
from steps.artifact_names import CHECKPOINT, MODEL_NAME, WARM_START
from steps.model_registry import find_checkpoint
from training.record.experiment import MAIL_TASK


def require_evaluation(config: Config) -> None:
    """Raise BadInput if this machine has to ask the judge or `baseline_model` and cannot, before a training is spent."""
    from steps.evaluation.prompted import prompted_model

    if runs_elsewhere("run_inference", config.step_settings):
        return
    config.evaluation.require_judge()
    if prompted := prompted_model(config.evaluation, config.for_training()):
        prompted.require_ready("baseline_model")


def find_trained(explicit: dict[str, Any], checkpoint: str | None) -> TrainedRun | None:
    """Return what to evaluate: the named checkpoint, or else the newest trained model.

    `None` if the user set anything that a training run depends on: then the run with these settings is evaluated.

    Raises:
        BadInput: the named checkpoint is missing or incomplete.
    """
    if checkpoint is not None:
        return _named_checkpoint(checkpoint)
    if explicit.keys() & {"data", "agent", "trainer"}:
        return None
    try:
        versions = Client().list_model_versions(model=MODEL_NAME, sort_by="desc:created", size=50, hydrate=True)
    except KeyError:
        return None  # no model yet
    return next((found for version in versions.items if (found := trained_run_of(version))), None)


def _named_checkpoint(reference: str) -> TrainedRun:
    stored = find_checkpoint(reference)
    stored.checkpoint.require_task(MAIL_TASK)
    manifest = stored.checkpoint.manifest
    data = data_in_store(manifest.data, f"--checkpoint {reference}")
    return TrainedRun(version=manifest.name, data=data, checkpoint=UUID(artifact_of(stored)), warm_start=None)


def trained_run_of(version: ModelVersionResponse) -> TrainedRun | None:
    """Return the artifacts of a model version's training; `None` if it is unfinished."""
    checkpoint, warm_start = version.get_artifact(CHECKPOINT), version.get_artifact(WARM_START)
    if checkpoint is None or warm_start is None:
        return None
    data = _trained_on(checkpoint, version.name)
    return TrainedRun(version=version.name, data=data, checkpoint=checkpoint.id, warm_start=warm_start.id)


def _trained_on(checkpoint: ArtifactVersionResponse, version: str) -> DataRun:
    if checkpoint.producer_step_run_id is None:  # its run was deleted, which leaves the artifact in the store
        return data_in_store(checkpoint.load().manifest.data, f"version {version}")
    inputs = checkpoint.step.inputs
    return DataRun(database=inputs["database"][0].id, scenarios=inputs["scenarios"][0].id)


def run_eval(
    config: Config, trained: TrainedRun, *, cache: bool, summary: Path | None, base_model: str | None = None
) -> None:
    """Evaluate a training run and print the closing table. Call `require_evaluation` first.

    `base_model` replaces the source that the checkpoint names.
    """
    from pipelines.evaluation import evaluation_pipeline

    arguments = {
        "database": trained.data.database,
        "scenarios": trained.data.scenarios,
        "base_model": base_model,
    }
    evaluate_by(evaluation_pipeline, arguments, trained, config=config, model=MODEL_NAME, cache=cache, summary=summary)
