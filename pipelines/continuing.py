"""`--from RUN|CHECKPOINT` and `continue_from`: a new run that starts from an adapter which exists already."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from zenml import save_artifact
from zenml.client import Client

from configs.schema import Config
from materializers.checkpoint import CheckpointMaterializer
from pipelines.resuming import all_runs
from reports.console import say
from steps.artifact_names import CHECKPOINT, MODEL_NAME
from steps.model_registry import find_checkpoint, production_version
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.experiment import find_runs
from training.settings import FROM_PRODUCTION


def with_start(config: Config, *, scheduled: bool = False) -> Config:
    """The configuration with `continue_from` as the id of a checkpoint artifact, so that the run's key depends on the adapter.

    Production is looked up now, for a `scheduled` run when it begins. With nothing in production a run starts from the base model.

    Raises:
        BadInput: there is no such run or checkpoint, or its adapter has another shape than the settings ask for.
    """
    if config.continue_from is None:
        return config
    start = _find_start(config.continue_from)
    if start is not None:
        find_checkpoint(start).checkpoint.require_shape(config.lora_rank, config.lora_layers)
    if scheduled and config.continue_from == FROM_PRODUCTION:
        return config  # a run checks again what is in production by then
    if start is None:
        say("continue_from=production: nothing is in production yet, so this run starts from the base model")
    return config.model_copy(update={"continue_from": start})


def _find_start(name: str) -> str | None:
    """Id of the checkpoint artifact that `name` means; None when it is production and there is none."""
    if name == FROM_PRODUCTION:
        version = production_version()
        checkpoint = version.get_artifact(CHECKPOINT) if version else None
        return str(checkpoint.id) if checkpoint else None
    if Path(name).expanduser().is_dir():
        return _stored(Checkpoint.load(Path(name).expanduser()))
    if _is_id(name):
        return find_checkpoint(name).reference
    [(experiment, _)] = find_runs(all_runs(), [name])
    try:
        checkpoint = Client().get_model_version(MODEL_NAME, experiment.run).get_artifact(CHECKPOINT)
    except KeyError:
        checkpoint = None
    if checkpoint is None:
        raise BadInput(
            f"run {name} is unfinished, so it has no checkpoint to start from: go on with it by --resume {name}, or name a "
            "checkpoint folder"
        )
    return str(checkpoint.id)


def _stored(checkpoint: Checkpoint) -> str:
    """Id of the artifact version with this adapter; a new one the first time. Pods and later runs cannot open the folder."""
    known = Client().list_artifact_versions(
        artifact=CHECKPOINT, run_metadata=f"checksum:{checkpoint.manifest.adapter_checksum}", size=1
    )
    if known.items:
        return str(known.items[0].id)
    return str(save_artifact(checkpoint, name=CHECKPOINT, materializer=CheckpointMaterializer).id)


def _is_id(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True
