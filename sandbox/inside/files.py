"""The files of a workspace: write, read, and compare with the snapshot."""

from __future__ import annotations

import hashlib
import os
import typing

SKIPPED = frozenset(["__pycache__", ".git", ".venv", ".pytest_cache", ".hypothesis"])
"""Folders whose content does not count as a change of a workspace."""
CHANGED_FILES, CHANGED_BYTES = 500, 1 << 20
"""Maximum number of files, and of bytes, in the changes of a workspace."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _inside(root: str, path: str) -> str:
    """Return the absolute path of a relative one. Raises ValueError if it leaves the workspace."""
    place = os.path.realpath(os.path.join(root, path))
    if os.path.isabs(path) or not place.startswith(root + "/"):
        raise ValueError(f"{path}: not a path inside the workspace")
    return place


def write_files(root: str, files: dict[str, str], most: int) -> dict[str, typing.Any]:
    for path, text in files.items():
        place = _inside(root, path)
        if len(text.encode("utf-8", "surrogateescape")) > most:
            raise ValueError(f"{path}: more than {most} bytes")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
    return {}


def read_file(root: str, path: str, most: int) -> dict[str, typing.Any]:
    place = _inside(root, path)
    if not os.path.isfile(place):
        raise ValueError(f"{path}: no such file")
    with open(place, "rb") as file:
        data = file.read(most + 1)
    return {"content": data[:most].decode("utf-8", "replace"), "truncated": len(data) > most}


def texts(root: str) -> typing.Iterator[tuple[str, str | None]]:
    """Return every file below `root`: relative path -> text, or `None` for a file that is not text."""
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name for name in folders if name not in SKIPPED and not os.path.islink(os.path.join(folder, name))
        ]
        for name in sorted(names):
            place = os.path.join(folder, name)
            if os.path.islink(place) or not os.path.isfile(place) or not _is_text(os.path.relpath(place, root)):
                continue
            try:
                with open(place, "rb") as file:
                    text: str | None = file.read(CHANGED_BYTES + 1).decode("utf-8", "strict")
            except (OSError, UnicodeError):
                text = None
            yield os.path.relpath(place, root), text


def _is_text(name: str) -> bool:
    """Return whether a name can be part of a patch; to Linux a name is bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def changed_files(root: str, original: dict[str, str]) -> dict[str, typing.Any]:
    changed: dict[str, str] = {}
    seen, total = set(), 0
    for path, text in texts(root):
        seen.add(path)
        if text is None or original.get(path) == digest(text):
            continue
        total += len(text)
        if len(changed) == CHANGED_FILES or total > CHANGED_BYTES:
            raise ValueError(f"more than {CHANGED_FILES} files or {CHANGED_BYTES >> 20} MiB were changed")
        changed[path] = text
    gone = {path for path in set(original) - seen if SKIPPED.isdisjoint(path.split("/")[:-1])}
    return {"changed": changed, "deleted": sorted(gone)}
