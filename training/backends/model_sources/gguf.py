"""Base models from GGUF files: converted once into a folder in Hugging Face layout, which is kept."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from training.backends.model_sources.folder import BaseModelFiles, file_sha256, model_checksum
from training.errors import BadInput
from training.files import is_disk_full

MANIFEST = "manifest.json"


class GgufOrigin(BaseModel):
    """Identity of a GGUF file and the form that it is converted to."""

    id: str
    source: str
    sha256: str
    license: str
    chat_template: Path | None
    """Replaces the template in the file's metadata, which is taken if this is `None`."""
    dtype: str


class _Manifest(BaseModel):
    """Kept next to converted weights, so that the next call need not touch them."""

    conversion: Literal[2]
    """Raised when the conversion changes what it writes: folders with another number are made again."""
    id: str
    source: str
    source_sha256: str
    license: str
    chat_template_sha256: str | None
    checksum: str
    sizes: dict[str, int]


def from_gguf(gguf: Path, models_dir: Path, progress: Callable[[str], None]) -> BaseModelFiles:
    """Convert a local GGUF file into `models_dir`, once. Its own chat template must know tools.

    Raises:
        BadInput: The file is missing, damaged, of an unknown architecture or quantisation, or does not fit on the disk.
    """
    origin, folder = local_origin(gguf)

    def build(partial: Path) -> None:
        convert(gguf, partial, origin, progress)

    # The converted weights are no smaller than a file of at most 16 bits a weight; the conversion knows their exact size.
    return build_once(origin, models_dir, folder, gguf.stat().st_size, build)


def local_origin(gguf: Path) -> tuple[GgufOrigin, str]:
    """Return the identity of a local GGUF file and the name of its converted folder."""
    if not gguf.is_file():
        raise BadInput(f"base_model: there is no file {gguf}")
    digest = file_sha256(gguf)
    origin = GgufOrigin(
        id=gguf.stem, source=gguf.name, sha256=digest, license="unknown", chat_template=None, dtype="bfloat16"
    )
    return origin, f"{gguf.stem.lower()}-{digest[:8]}"


def finished(origin: GgufOrigin, target: Path) -> BaseModelFiles | None:
    """Return the converted model if it is complete and was made from these weights with this chat template."""
    try:
        manifest = _Manifest.model_validate_json((target / MANIFEST).read_text())
        sizes = {name: (target / name).stat().st_size for name in manifest.sizes}
    except (OSError, ValidationError):
        return None
    made_from = (manifest.source_sha256, manifest.chat_template_sha256)
    if made_from != (origin.sha256, _template_sha256(origin)) or sizes != manifest.sizes:
        return None
    made = (target / MANIFEST).stat().st_mtime_ns  # the manifest is written last
    if any((target / name).stat().st_mtime_ns > made for name in sizes) and model_checksum(target) != manifest.checksum:
        return None
    return BaseModelFiles(id=manifest.id, path=target, checksum=manifest.checksum)


def build_once(
    origin: GgufOrigin, models_dir: Path, folder: str, disk_bytes: int, build: Callable[[Path], None]
) -> BaseModelFiles:
    """Return `models_dir/folder`, made by `build(partial)` in `partial/model` unless it is there.

    `disk_bytes` is the space that building takes. Raises `BadInput` if the disk is full or read-only.
    """
    target = models_dir.resolve() / folder
    if files := finished(origin, target):
        return files

    from filelock import FileLock

    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        # The lock lets the second of two runs that start together wait for the first, and makes the leftovers of a
        # killed build safe to delete.
        with FileLock(models_dir / f".{folder}.lock"):
            if files := finished(origin, target):
                return files
            partial = models_dir / f".{folder}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            require_space(models_dir, disk_bytes)
            partial.mkdir()
            try:
                build(partial)
                shutil.rmtree(target, ignore_errors=True)
                os.replace(partial / "model", target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if is_disk_full(error):
            raise BadInput(_no_space(models_dir, disk_bytes)) from error
        if error.errno in (errno.EACCES, errno.EROFS):
            raise BadInput(f"models folder {models_dir} cannot be written: {error.strerror}") from error
        raise
    files = finished(origin, target)
    assert files is not None, "a model that was just built is complete"
    return files


def convert(gguf: Path, partial: Path, origin: GgufOrigin, progress: Callable[[str], None]) -> None:
    """Convert `gguf` into `partial/model`, with a manifest."""
    progress(f"converting to {origin.dtype} safetensors, once")
    converted = partial / "model"
    run_conversion(gguf, converted, origin)
    manifest = _Manifest(
        conversion=2,
        id=origin.id,
        source=origin.source,
        source_sha256=origin.sha256,
        license=origin.license,
        chat_template_sha256=_template_sha256(origin),
        checksum=model_checksum(converted),
        sizes={file.name: file.stat().st_size for file in sorted(converted.iterdir())},
    )
    (converted / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")


def run_conversion(gguf: Path, target: Path, origin: GgufOrigin) -> None:
    """Run the conversion in a separate process, which returns its memory to the system."""
    command = [sys.executable, "-m", "training.backends.gguf_conversion", str(gguf.resolve()), str(target.resolve())]
    command += [origin.dtype, *([str(origin.chat_template)] if origin.chat_template else [])]
    result = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        check=False,
        capture_output=True,
        text=True,
    )
    if result.returncode == 0:
        return
    if "No space left" in result.stderr or "os error 28" in result.stderr:
        raise OSError(errno.ENOSPC, "No space left on device")
    if result.returncode == 2:
        raise BadInput(f"base_model: {last_line(result.stderr)}")
    if result.returncode < 0:
        raise BadInput(
            f"base_model: converting {gguf.name} was stopped by signal {-result.returncode}, usually for lack of memory: "
            "it takes up to 4 GB; close other programs and try again"
        )
    raise RuntimeError(f"converting {gguf.name} failed: {last_line(result.stderr)}")


def require_space(folder: Path, needed: int) -> None:
    """Raise `BadInput` if the disk of `folder` has less than `needed` bytes free."""
    if shutil.disk_usage(folder).free < needed:
        raise BadInput(_no_space(folder, needed))


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def _template_sha256(origin: GgufOrigin) -> str | None:
    return file_sha256(origin.chat_template) if origin.chat_template else None


def _no_space(folder: Path, needed: int) -> str:
    free = shutil.disk_usage(folder).free
    return (
        f"no space left in {folder.resolve()}: building the base model needs {needed / 1e9:.1f} GB, "
        f"{free / 1e9:.1f} GB are free"
    )
