"""A LoRA adapter and its manifest in one folder that can be verified and moved."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import safe_open

from training.adapter_check import config_problem, misfit, weights_problem
from training.backends.model_sources.folder import BaseModelFiles, weight_shapes
from training.errors import BadInput
from training.files import is_disk_full, sha256_of_file
from training.record.experiment import MAIL_TASK

MANIFEST = "manifest.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS, MANIFEST)
_FILE_OF = {"adapter_checksum": ADAPTER_WEIGHTS, "adapter_config_checksum": ADAPTER_CONFIG}
_LAYER = re.compile(r"\.layers\.(\d+)\.")


class CheckpointManifest(BaseModel):
    """Origin and checksums of an adapter."""

    model_config = ConfigDict(frozen=True)

    base_model: str
    """Id of the base model, the same on every machine."""
    base_model_checksum: str
    """Checksum of the base model's weights, and of its chat template if that has compact calls."""
    base_model_source: str
    """Argument of `resolve_base_model` with which another machine can fetch the same base."""
    name: str
    step: int = Field(ge=0)
    """GRPO steps that the adapter was trained for; 0 is the warm start."""
    adapter_checksum: str
    """sha256 of the adapter's weights."""
    adapter_config_checksum: str | None = None
    """sha256 of the adapter's configuration; `None` in checkpoints from before it was recorded."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The training configuration."""
    data: dict[str, str] = Field(default_factory=dict)
    """Data artifact name -> id of the version that the adapter was trained on."""
    alerts: tuple[str, ...] = ()
    """Names of the alerts that the training raised up to the rollouts of this adapter: see `training.guard.alerts`."""
    seconds: float | None = None
    """Training time up to this adapter in seconds, without installation and data; `None` if unknown."""
    start_seconds: float | None = None
    """The same of the policy before the first GRPO step."""
    created: datetime


class Checkpoint:
    """An adapter in PEFT's format at `path`, and its manifest.

    The folder of a stored checkpoint holds `adapter_config.json`, `adapter_model.safetensors` and `manifest.json`.
    """

    def __init__(self, path: Path, manifest: CheckpointManifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def from_adapter(cls, folder: Path, **described: Any) -> Checkpoint:
        """Describe the adapter in `folder`; `described` holds the other fields of the manifest. Writes nothing.

        Raises:
            BadInput: when `folder` holds no adapter.
        """
        _require_files(folder, (ADAPTER_CONFIG, ADAPTER_WEIGHTS))
        sums = adapter_checksums(folder)
        return cls(folder, CheckpointManifest(**sums, **described))

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        """Load the checkpoint in `folder` and verify its files: checksums, shapes, and that all weights are finite.

        Raises:
            BadInput: when a file is missing or damaged, or the adapter could only answer noise.
        """
        _require_files(folder, FILES)
        try:
            manifest = CheckpointManifest.model_validate_json((folder / MANIFEST).read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            problem = f"{MANIFEST} is damaged ({where}: {first['msg']})"
            raise BadInput(f"checkpoint {folder}: {problem}: copy the folder again") from error
        for name, found in adapter_checksums(folder).items():
            if getattr(manifest, name) not in (found, None):
                raise BadInput(
                    f"checkpoint {folder}: {_FILE_OF[name]} is not what {MANIFEST} describes: copy the folder again"
                )
        config, weights = folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS
        if wrong := config_problem(config) or weights_problem(weights, config):
            raise BadInput(f"checkpoint {folder}: {wrong}: copy the folder again, or train again")
        return cls(folder, manifest)

    def save(self, folder: Path) -> Checkpoint:
        """Copy adapter and manifest to `folder`, all or nothing. Replaces an existing checkpoint.

        Raises:
            BadInput: when the disk is full or `folder` holds something other than a checkpoint.
        """
        if folder.exists() and (not folder.is_dir() or {file.name for file in folder.iterdir()} - set(FILES)):
            raise BadInput(f"checkpoint: {folder} exists and is not a checkpoint: choose another folder")
        partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        replaced = partial.with_name(f"{partial.name}.old")
        try:
            partial.mkdir(parents=True)
            for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                shutil.copyfile(self.path / name, partial / name)
            (partial / MANIFEST).write_text(self.manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                os.replace(folder, replaced)
            os.replace(partial, folder)
        except OSError as error:
            if is_disk_full(error):
                raise BadInput(f"checkpoint: no space left to write {folder}: free some and run again") from error
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
        return Checkpoint(folder, self.manifest)

    def require_base(self, base: BaseModelFiles) -> None:
        """Raise `BadInput` unless the adapter fits these base weights, and was trained on them and with this form of tool calls."""
        trained_on, base_model, checksum = self.manifest, base.id, base.checksum
        if trained_on.base_model_checksum == checksum:
            if problem := misfit(self.path / ADAPTER_WEIGHTS, weight_shapes(base.path)):
                raise BadInput(
                    f"checkpoint {trained_on.name} (step {trained_on.step}) does not fit {base_model}: {problem}"
                )
            return
        if trained_on.base_model == base_model:
            raise BadInput(
                f"checkpoint {trained_on.name} (step {trained_on.step}) was trained on other weights of {base_model} "
                f"or another form of its tool calls (sha256 {trained_on.base_model_checksum[:12]}..., "
                f"here {checksum[:12]}...): use that version of it, or train again"
            )
        raise BadInput(
            f"checkpoint {trained_on.name} (step {trained_on.step}) was trained on {trained_on.base_model}, "
            f"not on {base_model}: set base_model to {trained_on.base_model_source}"
        )

    @property
    def task(self) -> str:
        """The task that it was trained on; checkpoints of the e-mail agent do not record it."""
        return str(self.manifest.config.get("task", MAIL_TASK))

    def require_task(self, task: str) -> None:
        """Raise BadInput unless the adapter was trained on this task."""
        if self.task != task:
            raise BadInput(f"the checkpoint was trained with task={self.task}: add --task {self.task}")

    def require_shape(self, rank: int, layers: int | None) -> None:
        """Raise BadInput unless this adapter has the given rank and number of layers."""
        adapter = json.loads((self.path / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        chosen = adapter.get("layers_to_transform")
        # A number of layers that covers the whole model is recorded as all of them.
        all_adapted = not chosen and layers is not None and layers >= self._adapted_layers()
        found = {"lora_rank": adapter["r"], "lora_layers": layers if all_adapted else len(chosen) if chosen else None}
        for (name, value), wanted in zip(found.items(), (rank, layers), strict=True):
            if wanted != value:
                wants, has = ("null" if number is None else number for number in (wanted, value))
                raise BadInput(
                    f"{name}={wants} does not fit the checkpoint to continue from, which has {has}: set {name}={has}"
                )

    def _adapted_layers(self) -> int:
        with safe_open(self.path / ADAPTER_WEIGHTS, "numpy") as weights:
            return len({found[1] for key in weights.keys() if (found := _LAYER.search(key))})  # noqa: SIM118


def adapter_checksums(folder: Path) -> dict[str, str]:
    """Return the manifest's fields with the checksums of the adapter's files."""
    return {field: sha256_of_file(folder / name) for field, name in _FILE_OF.items()}


def _require_files(folder: Path, names: tuple[str, ...]) -> None:
    if not folder.is_dir():
        raise BadInput(f"checkpoint: there is no folder {folder}")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise BadInput(f"checkpoint {folder}: {missing[0]} is missing: it holds no finished checkpoint")
