"""Paths that users give, in settings and options."""

from __future__ import annotations

import os
from pathlib import Path

_MOST_BYTES = 255
"""Of one name, on the usual file systems."""


def path_problem(text: str) -> str | None:
    """Return why no file can have this path, or None."""
    if not text.strip():
        return "is empty"
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        return "has a line break or another control character"
    try:
        names = os.fsencode(text).split(os.fsencode(os.sep))
    except UnicodeEncodeError:
        return "has characters that no file name can have"
    if max(map(len, names)) > _MOST_BYTES or len(os.fsencode(text)) > 4_000:
        return f"has a name of more than {_MOST_BYTES} bytes, or more than 4,000 in all"
    try:
        Path(text).expanduser()
    except RuntimeError:
        return f"there is no user {text.partition(os.sep)[0].removeprefix('~')!r} with a home folder"
    return None


def unwritable(file: Path) -> str | None:
    """Return why the file cannot be written, before hours of work; None if it seems writable."""
    try:
        if file.is_dir():
            return "is a folder; name a file"
        folder = next(place for place in file.absolute().parents if place.exists())
    except OSError as error:  # a folder that this user may not look into
        return f"{error.filename}: {error.strerror}"
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return None
    return f"{folder} is not a folder that can be written to"
