"""Make an artifact's files local: in place when the artifact store is a folder, otherwise by one download."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from pathlib import Path
from typing import IO, Any, cast

from zenml.artifact_stores.base_artifact_store import BaseArtifactStore

from environment.home import HOME
from training.errors import BadInput

CHUNK_BYTES = 1 << 20
DOWNLOADS = HOME / "data" / "artifacts"
"""Downloaded artifacts, each in a folder named after its checksum."""


class DamagedArtifact(BadInput):
    """The artifact store returned other content than was stored."""


def put_file(store: BaseArtifactStore, source: Path, uri: str) -> tuple[str, int]:
    """Copy a local file to `uri`. Return SHA-256 and size in bytes."""
    with source.open("rb") as reader, store.open(uri, "wb") as writer:
        return _copy(reader, cast(IO[bytes], writer))


def get_file(store: BaseArtifactStore, uri: str, target: Path) -> str:
    """Copy `uri` to a local file. Return its SHA-256."""
    with store.open(uri, "rb") as reader, target.open("wb") as writer:
        digest, _ = _copy(cast(IO[bytes], reader), writer)
    return digest


def local_folder(store: BaseArtifactStore, uri: str, sha256_of: dict[str, str], *, below: Path | None = None) -> Path:
    """Return a local folder with the named files of the artifact at `uri`.

    A local artifact store's folder is used in place and must not be written to. Otherwise the files are downloaded below
    `below` (default `DOWNLOADS`) once per checkout.

    Raises:
        DamagedArtifact: when a downloaded file's sha256 differs from the stored one.
    """
    in_place = Path(uri)
    if in_place.is_dir():
        return in_place
    content = hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(sha256_of.items())).encode())
    cached = (below or DOWNLOADS) / content.hexdigest()
    if cached.is_dir():
        return cached
    partial = cached.with_name(f".{cached.name}.{uuid.uuid4().hex}")
    try:
        partial.mkdir(parents=True)
        for name, expected in sha256_of.items():
            (partial / name).parent.mkdir(exist_ok=True)
            found = get_file(store, os.path.join(uri, name), partial / name)
            if found != expected:
                raise DamagedArtifact(f"{uri}: {name} arrived damaged (sha256 {found[:12]}, expected {expected[:12]})")
        try:
            os.replace(partial, cached)
        except OSError:
            # Another process finished the same download first; its folder has the same content.
            if not cached.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return cached


def _copy(reader: IO[bytes], writer: Any) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while chunk := reader.read(CHUNK_BYTES):
        digest.update(chunk)
        writer.write(chunk)
        size += len(chunk)
    return digest.hexdigest(), size
