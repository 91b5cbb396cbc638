"""Files: write them all or nothing, recognise a full disk, compute checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from pathlib import Path


def write_text(path: Path, text: str) -> Path:
    """Write a text file, all or nothing, and make its folder. Return its path. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, its cause or its context is a full disk or an exhausted quota."""
    while error is not None:
        # safetensors and torch report it in their message only.
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def sha256_of_file(file: Path) -> str:
    """Return the sha256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
