"""Find the stored checkpoint and mail database that a pipeline works with."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from zenml.client import Client
from zenml.enums import ModelStages
from zenml.io import fileio
from zenml.models import ArtifactVersionResponse, ModelVersionResponse

from steps.artifact_names import CHECKPOINT, MAIL_DATABASE, MODEL_NAME
from steps.data.sources import settings_of_step
from training.checkpoint import MANIFEST, Checkpoint, CheckpointManifest
from training.errors import BadInput

_DATA_PIPELINE = "data_preparation_pipeline"


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint, and the unique reference that `find_checkpoint` resolves to it."""

    checkpoint: Checkpoint
    reference: str
    model_version: ModelVersionResponse | None


def find_checkpoint(
    reference: str | None = None, *, unpromoted: bool = True, model: str = MODEL_NAME
) -> StoredCheckpoint:
    """Find the checkpoint that `reference` names: a folder, or the id or name of an artifact version.

    The default is that of the version of `model` in stage production. If there is none and `unpromoted` is true, it is that
    of the latest model version.

    Raises:
        BadInput: there is no such checkpoint, or it is damaged.
    """
    if reference is None:
        version = current_model_version(model)
        if not unpromoted and version.stage != ModelStages.PRODUCTION:
            raise BadInput(
                f"no version is in production; the latest is {describe_version(version)}: serve it with --unpromoted, or name a "
                "checkpoint with --checkpoint"
            )
        artifact = version.get_artifact(CHECKPOINT)
        assert artifact is not None, "the current model version has a checkpoint"
        return StoredCheckpoint(_load_checkpoint(artifact), str(artifact.id), version)
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return StoredCheckpoint(Checkpoint.load(folder), str(folder.resolve()), None)
    try:
        artifact = Client().get_artifact_version(reference)
    except (KeyError, ValueError) as error:
        raise BadInput(
            f"checkpoint: {reference} is neither a folder nor an artifact version (see `zenml artifact version list`)"
        ) from error
    return StoredCheckpoint(_load_checkpoint(artifact), str(artifact.id), None)


def find_manifest(checkpoint: str) -> CheckpointManifest | None:
    """Return the manifest of a stored checkpoint without its adapter; None if it is no longer there."""
    try:
        uri = Client().get_artifact_version(checkpoint).uri
        with fileio.open(os.path.join(uri, MANIFEST), "rb") as file:
            return CheckpointManifest.model_validate_json(file.read())
    except (KeyError, ValueError, OSError):
        return None


def describe_version(version: ModelVersionResponse) -> str:
    """Describe a version: its name, stage and accuracy, and why it was not promoted."""
    facts = [f"stage {version.stage}" if version.stage else "no stage"]
    evaluation = version.run_metadata.get("evaluation") or {}
    if "trained" in evaluation:
        facts.append(f"{evaluation['trained']:.1%} of {evaluation['n']} questions correct")
    else:
        facts.append("not evaluated")
    if (promotion := version.run_metadata.get("promotion")) and not promotion["promoted"]:
        facts.append(f"not promoted: {promotion['reason']}")
    return f"{version.name} ({', '.join(facts)})"


def production_version(model: str = MODEL_NAME) -> ModelVersionResponse | None:
    """Return the version of a model in stage production, if there is one and it has a checkpoint."""
    with contextlib.suppress(KeyError):  # nothing was promoted yet
        version = Client().get_model_version(model, ModelStages.PRODUCTION)
        if version.get_artifact(CHECKPOINT) is not None:
            return version
    return None


def other_in_production(version: str, model: str = MODEL_NAME) -> str | None:
    """Return the id of the checkpoint in production; None if it is that of `version`, or there is none."""
    production = production_version(model)
    checkpoint = production.get_artifact(CHECKPOINT) if production and production.name != version else None
    return str(checkpoint.id) if checkpoint else None


def current_model_version(model: str = MODEL_NAME) -> ModelVersionResponse:
    """Return the model version in stage production, else the latest with a checkpoint.

    Raises `BadInput` if there is none.
    """
    if version := production_version(model):
        return version
    try:
        for version in Client().list_model_versions(model=model, sort_by="desc:created", size=50):
            if version.get_artifact(CHECKPOINT) is not None:
                return version
    except KeyError:
        pass  # no model is the same to the caller as a model without versions
    of_task = "" if model == MODEL_NAME else " with the same task"
    raise BadInput(f"there is no trained checkpoint yet: run `python run.py --pipeline train`{of_task} first")


def find_mail_database(
    stored: StoredCheckpoint | None = None, reference: str | None = None, *, latest: bool = False
) -> ArtifactVersionResponse:
    """Find the mail database that `reference` names, the id or name of an artifact version.

    The default is the database of the checkpoint's training. If this store has none, or with `latest`, it is the one that
    `--pipeline data` prepared last.

    Raises:
        BadInput: there is no such database.
    """
    try:
        if reference is not None:
            return Client().get_artifact_version(reference)
        if stored is not None and not latest and (trained_on := _trained_on(stored)):
            return trained_on
        return _prepared_last()
    except KeyError as error:
        raise BadInput("there is no mail database yet: run `python run.py --pipeline data` first") from error


def describe_other_mail(stored: StoredCheckpoint, database: ArtifactVersionResponse) -> str | None:
    """Describe a mail database that is not that of the checkpoint's training; None if it is."""
    trained_on = _trained_on(stored)
    if trained_on is not None and trained_on.id == database.id:
        return None
    return f"mail: what `--pipeline data` prepared last, not that of the training: {describe_mail(database)}"


def describe_mail(database: ArtifactVersionResponse) -> str:
    """Describe a mail database: its size and source, as far as they are known."""
    known = database.run_metadata
    source = settings_of_step(database).get("emails", "unknown, because its run was deleted")
    counts = f"{known['kept']:,} mails in {known['inboxes']:,} inboxes, " if {"kept", "inboxes"} <= known.keys() else ""
    return f"{counts}source {source}"


def _trained_on(stored: StoredCheckpoint) -> ArtifactVersionResponse | None:
    """Return the database of the checkpoint's model version, else the one it was trained on, if this store has one."""
    if stored.model_version and (linked := stored.model_version.get_artifact(MAIL_DATABASE)):
        return linked
    if trained_on := stored.checkpoint.manifest.data.get(MAIL_DATABASE):
        with contextlib.suppress(KeyError):  # a checkpoint may come from the store of another machine
            return Client().get_artifact_version(trained_on)
    return None


def _prepared_last() -> ArtifactVersionResponse:
    """Return the database of the last run of `--pipeline data`, else the newest. Raises KeyError if there is none.

    A run that found everything in the cache reports a database that may be older than those of other mail.
    """
    runs = Client().list_pipeline_runs(pipeline=_DATA_PIPELINE, status="completed", sort_by="desc:created", size=1)
    for run in runs:
        if (step := run.steps.get("create_database")) and (found := step.outputs.get(MAIL_DATABASE)):
            return found[0]
    return Client().get_artifact_version(MAIL_DATABASE)


def _load_checkpoint(artifact: ArtifactVersionResponse) -> Checkpoint:
    loaded = artifact.load()
    if not isinstance(loaded, Checkpoint):
        raise BadInput(f"checkpoint: artifact {artifact.name} holds a {type(loaded).__name__}, not a checkpoint")
    return loaded
