"""Materializer of checkpoints: the three files of a checkpoint's folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer

from materializers.local_files import DamagedArtifact, local_folder, put_file
from training.checkpoint import FILES, MANIFEST, Checkpoint
from training.files import sha256_of_file

FILE_RECORD = "files.json"


class CheckpointMaterializer(BaseMaterializer):
    """Store the files unchanged, so that PEFT can read the artifact's folder too."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (Checkpoint,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.MODEL

    def save(self, data: Checkpoint) -> None:
        sha256_of: dict[str, str] = {}
        with tempfile.TemporaryDirectory() as scratch:
            manifest = Path(scratch) / MANIFEST
            manifest.write_text(data.manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
            for name in FILES:
                source = manifest if name == MANIFEST else data.path / name
                sha256_of[name], _ = put_file(self.artifact_store, source, os.path.join(self.uri, name))
        with self.artifact_store.open(os.path.join(self.uri, FILE_RECORD), "w") as file:
            file.write(json.dumps(sha256_of))

    def load(self, data_type: type[Any]) -> Checkpoint:
        """Load the checkpoint. Raise `DamagedArtifact` or `BadInput` if the files are not the stored ones."""
        with self.artifact_store.open(os.path.join(self.uri, FILE_RECORD), "r") as file:
            sha256_of = json.loads(file.read())
        folder = local_folder(self.artifact_store, self.uri, sha256_of)
        for name, expected in sha256_of.items():
            if (folder / name).is_file() and sha256_of_file(folder / name) != expected:
                raise DamagedArtifact(f"checkpoint {folder}: {name} is not what was stored: restore it, or train again")
        return Checkpoint.load(folder)

    def extract_metadata(self, data: Checkpoint) -> dict[str, Any]:
        manifest = data.manifest
        return {
            "base_model": manifest.base_model,
            "base_model_checksum": manifest.base_model_checksum,
            "checksum": manifest.adapter_checksum,
            "name": manifest.name,
            "step": manifest.step,
        }

    def compute_content_hash(self, data: Checkpoint) -> str | None:
        # `created` differs between two trainings that end in the same weights. Prompt and limits of episodes are settings.
        manifest = data.manifest
        parts = [manifest.base_model_checksum, manifest.adapter_checksum, manifest.config]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
