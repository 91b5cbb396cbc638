"""Files that are being written. A process that is killed leaves its file behind, and the next one removes it."""

from __future__ import annotations

import os
import uuid
import weakref
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

_LOCK = ".lock"


class ScratchFile:
    """A new path `FOLDER/NAME-...` to write to. The file lasts until `remove`, the last reference to this object or the end of
    the process.

    Files whose names begin alike, and whose processes were killed, are removed. Raises OSError if `folder` cannot be written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for other in os.listdir(folder):
            if other.startswith(f"{name}-") and not other.endswith(_LOCK):
                _remove_if_left_behind(folder / other)
        self.path = folder / f"{name}-{uuid.uuid4().hex}"
        # Locked before the file exists, so that no other process takes it for one that was left behind.
        lock = _lock_of(self.path)
        lock.acquire()
        self._removal = weakref.finalize(self, _remove, self.path, lock)

    def remove(self) -> None:
        """Remove the file, if it is still there."""
        self._removal()


def _lock_of(path: Path) -> FileLock:
    # The last reference may go in any thread.
    return FileLock(f"{path}{_LOCK}", thread_local=False)


def _remove_if_left_behind(path: Path) -> None:
    lock = _lock_of(path)
    with suppress(Timeout, OSError):  # OSError: somebody else's
        lock.acquire(timeout=0)
        _remove(path, lock)


def _remove(path: Path, lock: FileLock) -> None:
    try:
        path.unlink(missing_ok=True)
        Path(lock.lock_file).unlink(missing_ok=True)
    finally:
        lock.release()
