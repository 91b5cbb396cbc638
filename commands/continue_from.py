"""`--from RUN|CHECKPOINT` and `continue_from`: find the adapter that a new run starts from."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from zenml import save_artifact
from zenml.client import Client

from commands.resume import all_runs
from configs.config import Config
from materializers.checkpoint import CheckpointMaterializer
from reports.console import say
from steps.artifact_names import CHECKPOINT, MODEL_NAME
from steps.model_registry import StoredCheckpoint, find_checkpoint, production_version
from training.errors import BadInput
from training.record.experiment import find_runs
from training.settings import FROM_PRODUCTION


def with_start(config: Config, *, model: str = MODEL_NAME, scheduled: bool = False, dry_run: bool = False) -> Config:
    """Return the configuration with `continue_from` as the id of a checkpoint artifact, on which the run's key then depends.

    A `scheduled` run looks up production when it starts, any other now. With nothing in production a run starts from the base model.
    `model` is the registered name of the agent's versions. A `dry_run` stores nothing, so the folder of a checkpoint stays its path.

    Raises:
        BadInput: there is no such run or checkpoint, or the rank or layers of its adapter differ from the settings.
    """
    trainer = config.trainer
    if trainer.continue_from is None:
        return config
    folder = Path(trainer.continue_from).expanduser()
    if trainer.continue_from != FROM_PRODUCTION and folder.is_dir():
        stored = find_checkpoint(str(folder))
        stored.checkpoint.require_task(config.task)
        stored.checkpoint.require_shape(trainer.lora_rank, trainer.lora_layers)
        return config if dry_run else _starting_from(artifact_of(stored), config)
    start = _find_start(trainer.continue_from, config.task, model)
    if start is not None:
        checkpoint = find_checkpoint(start).checkpoint
        checkpoint.require_task(config.task)
        checkpoint.require_shape(trainer.lora_rank, trainer.lora_layers)
    if scheduled and trainer.continue_from == FROM_PRODUCTION:
        return config  # the run looks up production again
    if start is None:
        say("continue_from=production: nothing is in production yet, so this run starts from the base model")
    return _starting_from(start, config)


def _starting_from(start: str | None, config: Config) -> Config:
    trainer = config.trainer.model_copy(update={"continue_from": start})
    return config.model_copy(update={"trainer": trainer})


def _find_start(name: str, task: str, model: str) -> str | None:
    """Return the id of the checkpoint artifact called `name`; None for production if nothing is there."""
    if name == FROM_PRODUCTION:
        version = production_version(model)
        checkpoint = version.get_artifact(CHECKPOINT) if version else None
        return str(checkpoint.id) if checkpoint else None
    if _is_id(name):
        return find_checkpoint(name).reference
    [(experiment, _)] = find_runs(all_runs(), [name])
    if experiment.task != task:
        raise BadInput(f"run {name} has task={experiment.task}: an agent of task={task} cannot start from its adapter")
    try:
        checkpoint = Client().get_model_version(model, experiment.run).get_artifact(CHECKPOINT)
    except KeyError:
        checkpoint = None
    if checkpoint is None:
        raise BadInput(
            f"run {name} has no checkpoint in this ZenML store: if it is unfinished, resume it with --resume {name}; if another store "
            "has it, name its checkpoint folder"
        )
    return str(checkpoint.id)


def artifact_of(stored: StoredCheckpoint) -> str:
    """Return the id of the artifact version of this checkpoint. A folder's is stored on first use: pods cannot open the folder."""
    if _is_id(stored.reference):
        return stored.reference
    checkpoint, manifest = stored.checkpoint, stored.checkpoint.manifest
    # Runs whose best policy is the one that they began with have equal adapters, and perhaps other prompts.
    same = [f"checksum:{manifest.adapter_checksum}", f"name:{manifest.name}", f"step:{manifest.step}"]
    known = Client().list_artifact_versions(artifact=CHECKPOINT, run_metadata=same, size=1)
    if known.items:
        return str(known.items[0].id)
    return str(save_artifact(checkpoint, name=CHECKPOINT, materializer=CheckpointMaterializer).id)


def _is_id(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True
