"""Snapshots of repositories, kept in memory and shared by the workspaces that begin with them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict

from sandbox.errors import Unusable


class SnapshotCache:
    """Files by the hash of their content; the least recently used snapshots are dropped."""

    def __init__(self, *, total_bytes: int, repository_bytes: int) -> None:
        self._total, self._most, self._held = total_bytes, repository_bytes, 0
        self._kept: OrderedDict[str, tuple[dict[str, str], int]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, files: dict[str, str]) -> str:
        """Keep the files and return their id. Raises Unusable when they are too large or hold what no file can."""
        body = json.dumps(files, sort_keys=True).encode()
        try:
            size = sum(len(text.encode()) for text in files.values())
            names = sum(len(name.encode()) for name in files)
        except UnicodeEncodeError:
            raise Unusable("the repository has half of a surrogate pair, which is no text") from None
        if size > self._most:
            raise Unusable(f"the repository has {size:,} bytes; at most {self._most:,} are allowed (repository_bytes)")
        id = hashlib.sha256(body).hexdigest()[:32]
        with self._lock:
            if id not in self._kept:
                # With the names: empty files would be kept without a limit.
                self._kept[id] = (dict(files), size + names)
                self._held += size + names
            self._kept.move_to_end(id)
            while len(self._kept) > 1 and self._held > self._total:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._held -= dropped
        return id

    def get(self, id: str) -> dict[str, str]:
        """Return the files. Raises KeyError if they were dropped or never stored."""
        with self._lock:
            files, _ = self._kept[id]
            self._kept.move_to_end(id)
            return files
