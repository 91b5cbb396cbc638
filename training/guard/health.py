"""Monitor the resources of a run in the background: processes, memory, disk, GPU and the policy's server.

`training.guard.stall_watch` reports calls that hang; this module reports likely causes, and what may fail next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psutil

from training.backends import gpu_memory
from training.health_limits import HealthLimits
from training.loopback import DIRECT, is_here

MEMORY_SHARE = 0.9
"""A run that holds this share of its memory limit may be killed by its next allocation."""
FREE_SHARE = 0.05
"""With a smaller share of free memory, the machine begins to swap or to kill."""
GPU_SHARE = 0.98
"""vLLM alone takes up to 0.95 of the GPU memory, so that less says nothing."""
STALE_SECONDS = 3600.0
"""No checkpoint takes as long to write."""
SERVER_SECONDS = 10.0
"""The policy's server answers faster than this even during an update."""


class HealthMonitor:
    """Context during which a separate thread passes each problem to `warn` once.

    It checks every `seconds` (0: never). A problem is reported when two consecutive checks find it, to ignore short
    peaks and processes that are ending.
    """

    def __init__(
        self,
        seconds: float,
        limits: HealthLimits,
        folder: Path,
        server: Callable[[], str | None],
        warn: Callable[[str], None],
    ) -> None:
        """`folder` is that of the run; `server` returns the base URL of the policy's server, `None` before its start."""
        self._seconds = seconds
        self._limits = limits
        self._folder = folder
        self._server = server
        self._warn = warn
        self._found_before: set[str] = set()
        self._told: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="health", daemon=True)

    def __enter__(self) -> Self:
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._seconds:
            self._thread.join()

    def look(self) -> None:
        """Check once, and report what the previous check found too."""
        found = dict(self._causes())
        for cause, sentence in found.items():
            if cause in self._found_before and cause not in self._told:
                self._told.add(cause)
                self._warn(sentence)
        self._found_before = set(found)

    def _watch(self) -> None:
        failed: set[str] = set()
        while not self._ended.wait(self._seconds):
            try:
                self.look()
            except Exception as error:  # a failing check must end neither the monitor nor the run
                problem = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
                if problem not in failed:
                    failed.add(problem)
                    self._warn(
                        f"the health of the run could not be checked ({problem}); the next check is in {self._seconds:g} s"
                    )

    def _causes(self) -> Iterator[tuple[str, str]]:
        """Return the current problems: an identifier, and a sentence with the figures."""
        limits = self._limits
        yield from _processes(limits.child_processes)
        yield from _disks({"the run": self._folder, "temporary files": Path(tempfile.gettempdir())}, limits.disk_bytes)
        yield from _stale(self._folder)
        if (gpu := gpu_memory()) and gpu.used >= GPU_SHARE * gpu.total:
            yield "gpu", f"{_gb(gpu.used)} of the GPU's {_gb(gpu.total)} are in use: the next update may not fit"
        url = self._server()
        if url and _here(url) and not _answers(f"{url.rstrip('/').removesuffix('/v1')}/health", SERVER_SECONDS):
            yield "server", f"the policy's server at {url} does not answer within {SERVER_SECONDS:g} s"


def _processes(most_children: int) -> Iterator[tuple[str, str]]:
    this = psutil.Process()
    children = this.children(recursive=True)
    if len(children) > most_children:
        yield (
            "children",
            f"this run has {len(children)} child processes, more than {most_children}: "
            "something starts processes and does not end them",
        )
    resident = this.memory_info().rss
    for child in children:
        try:
            resident += child.memory_info().rss
            if child.status() == psutil.STATUS_ZOMBIE:
                yield (
                    f"child {child.pid}",
                    f"child process {child.name()} ({child.pid}) has ended, and its parent has not noticed",
                )
        except psutil.Error:
            continue  # it ended in the meantime
    machine = psutil.virtual_memory()
    total = min([machine.total, *_cgroup_limits()])
    if resident >= MEMORY_SHARE * total:
        yield (
            "memory",
            f"this run holds {_gb(resident)} of the {_gb(total)} of memory that it is allowed: it may be killed",
        )
    elif machine.available < FREE_SHARE * machine.total:
        left = f"{_gb(machine.available)} of {_gb(machine.total)} of memory are left on this machine"
        yield "memory", f"{left}, of which this run holds {_gb(resident)}: it may be killed"


def _cgroup_limits(proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Return the memory limits in bytes of this process's control groups, version 1 or 2; none outside Linux."""
    if not proc.is_file():
        return
    for line in proc.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = (mount / "memory", "memory.limit_in_bytes") if controllers else (mount, "memory.max")
        own = root / group.lstrip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            try:
                limit = (folder / name).read_text().strip()
            except OSError:
                continue  # a container sees its own group as the root, regardless of the path
            if limit.isdigit():  # version 2 writes `max` for none
                yield int(limit)


def _disks(places: dict[str, Path], least: float) -> Iterator[tuple[str, str]]:
    for what, folder in places.items():
        free = shutil.disk_usage(folder).free if folder.is_dir() else None
        if free is not None and free < least:
            yield f"disk of {what}", f"{_gb(free)} are free on the disk of {what} ({folder}): a full disk ends the run"


def _stale(folder: Path) -> Iterator[tuple[str, str]]:
    for parent, folders, files in os.walk(folder):  # unlike rglob it ignores files that vanish in the meantime
        for name in (*folders, *files):
            if name.endswith(".partial"):
                partial = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):
                    age = time.time() - partial.stat().st_mtime
                    if age > STALE_SECONDS:
                        yield (
                            str(partial),
                            f"{partial} is half-written for {age / 3600:.1f} hours: its writer hangs or was killed",
                        )


def _here(url: str) -> bool:
    return is_here(url) or urlsplit(url).hostname == "0.0.0.0"


def _answers(url: str, seconds: float) -> bool:
    try:
        with DIRECT.open(url, timeout=seconds) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):
        return False


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
