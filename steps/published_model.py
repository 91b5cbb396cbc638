"""Publish the files of the base model in the artifact store, from which other machines fetch them."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from zenml.artifact_stores.base_artifact_store import BaseArtifactStore
from zenml.client import Client

from materializers.local_files import DamagedArtifact, local_folder, put_file
from reports.console import say
from steps.project import MODELS
from training.backends.base_model import base_model_here, resolve_base_model
from training.backends.model_sources.folder import (
    CHAT_TEMPLATE,
    WEIGHTS_SUFFIX,
    BaseModelFiles,
    combined_checksum,
    file_sha256,
    model_files,
)
from training.errors import BadInput
from training.files import is_disk_full
from training.record.experiment import Experiment

BASE_MODELS_FOLDER = "base_models"
PUBLISHED_FILE = "published.json"


class PublishedModel(BaseModel):
    """Manifest of `{store}/base_models/{checksum}/`. Written last, so that all files that it names are there."""

    id: str
    source: str
    """Part of the identity, because another source may have the same weights with another tokenizer or chat
    template.
    """
    checksum: str
    files: dict[str, str]
    """File name -> sha256."""


def manifest_fields(files: BaseModelFiles, source: str, experiment: Experiment) -> dict[str, Any]:
    """Return the common fields of a run's checkpoint manifests: base model, settings, data and time."""
    return {
        "base_model": files.id,
        "base_model_checksum": files.checksum,
        "base_model_source": source,
        "config": experiment.config,
        "data": experiment.data,
        "created": datetime.now(UTC),
    }


def publish_base_model(files: BaseModelFiles, source: str) -> None:
    """Upload files that a remote artifact store lacks.

    If the store does not answer, print a line; the source still has the model.
    """
    store = Client().active_stack.artifact_store
    if store.config.is_local:
        return
    try:
        _upload(store, files, source)
    except Exception as error:  # botocore, aiohttp and s3fs each raise their own errors
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        say(f"the base model is not in the artifact store, other machines ask its source: {reason}")


def published_base_model(source: str, checksum: str) -> PublishedModel | None:
    """Return the manifest of the model in a remote artifact store, if any. Raises errors of the store."""
    store = Client().active_stack.artifact_store
    published = None if store.config.is_local else _published(store, checksum)
    return published if published and published.source == source else None


def base_model_files(
    source: str, checksum: str, *, models: Path | None = None, progress: Callable[[str], None] | None = None
) -> BaseModelFiles:
    """Return the published files, from this machine or the artifact store; if there are none, the files of the source.

    Raises:
        BadInput: a file is damaged or does not fit on the disk, or `resolve_base_model` fails.
    """
    models = models or MODELS
    published = published_base_model(source, checksum)
    if published is None:
        return resolve_base_model(source, models, progress=progress)
    here = base_model_here(source, models)
    if here and _described(here, source, published) == published:
        return here
    if progress:
        progress(f"taking {published.id} from the artifact store")
    store = Client().active_stack.artifact_store
    folder = _folder(store, checksum)
    try:
        path = local_folder(store, folder, published.files, below=models)
    except DamagedArtifact as error:
        raise BadInput(f"base_model: {error}: remove {folder}, the next training publishes it again") from error
    except OSError as error:
        if is_disk_full(error):
            raise BadInput(f"base_model: no space left in {models} for {published.id}") from error
        raise
    return BaseModelFiles(id=published.id, path=path, checksum=checksum)


def _upload(store: BaseArtifactStore, files: BaseModelFiles, source: str) -> None:
    folder = _folder(store, files.checksum)
    before = _published(store, files.checksum)
    now = _described(files, source, before)
    if now == before:
        return
    say(f"publishing {files.id} in the artifact store")
    listing = os.path.join(folder, PUBLISHED_FILE)
    if store.exists(listing):
        store.remove(listing)
    for name, digest in now.files.items():
        if before and before.files.get(name) == digest:
            continue
        uri = os.path.join(folder, name)
        store.makedirs(os.path.dirname(uri))
        if put_file(store, files.path / name, uri)[0] != digest:
            raise BadInput(f"{files.path / name} changed while it was uploaded")
    with store.open(listing, "w") as file:
        file.write(now.model_dump_json(indent=2) + "\n")


def _described(files: BaseModelFiles, source: str, known: PublishedModel | None) -> PublishedModel:
    # A known checksum identifies the weights, so that 15 GB need not be read again.
    weights = _weights(known) if known and known.checksum == files.checksum else {}
    digests = {name: weights.get(name) or file_sha256(files.path / name) for name in model_files(files.path)}
    return PublishedModel(id=files.id, source=source, checksum=files.checksum, files=digests)


def _weights(published: PublishedModel) -> dict[str, str]:
    return {name: digest for name, digest in published.files.items() if name.endswith(WEIGHTS_SUFFIX)}


def _published(store: BaseArtifactStore, checksum: str) -> PublishedModel | None:
    """Return the manifest of a complete publication; None if it is torn, of other weights, or lacks an expired file."""
    folder = _folder(store, checksum)
    listing = os.path.join(folder, PUBLISHED_FILE)
    if not store.exists(listing):
        return None
    with store.open(listing, "rb") as file:
        content = file.read()
    try:
        published = PublishedModel.model_validate_json(content)
    except ValidationError:
        return None
    weights = _weights(published)
    template = {name: digest for name, digest in published.files.items() if name == CHAT_TEMPLATE}
    if not weights or checksum not in (combined_checksum(weights), combined_checksum(weights | template)):
        return None
    if published.checksum != checksum:
        return None
    return published if all(store.exists(os.path.join(folder, name)) for name in published.files) else None


def _folder(store: BaseArtifactStore, checksum: str) -> str:
    return os.path.join(store.path, BASE_MODELS_FOLDER, checksum)
