"""Runs commands with limits that follow their work and not the clock: a busy machine is slow, a hung process does nothing."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psutil

IDLE_SECONDS = 600.0
"""A process and its children that used no processor for so long are taken to hang."""
MOST_CPU_SECONDS = 3600.0
"""What they may compute at most: against loops that never end."""
_LOOK_SECONDS = 2.0
_IDLE_SHARE = 0.01
"""Share of a processor that threads use while they wait: no more than this is no progress."""


class Watched(Protocol):
    """A process, of `subprocess` or of the fork server."""

    args: Any
    pid: int


def run(
    command: list[str], *, cwd: Path, env: dict[str, str], idle_seconds: float = IDLE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Return what a command did. It is killed, and `AssertionError` raised, when it hangs."""
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with guarded(process, idle_seconds=idle_seconds):
        output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@contextmanager
def guarded(
    process: Watched, *, idle_seconds: float = IDLE_SECONDS, most_cpu_seconds: float = MOST_CPU_SECONDS
) -> Iterator[None]:
    """Kill `process` and its children when they hang while the context is open, and raise `AssertionError` at its end."""
    left = threading.Event()
    problem: list[str] = []

    def watch() -> None:
        counted, moved_at = cpu_seconds(process.pid), time.monotonic()
        while not left.wait(min(_LOOK_SECONDS, idle_seconds / 2)):
            now = time.monotonic()
            used = cpu_seconds(process.pid)
            if used > most_cpu_seconds:
                problem.append(f"it computed for {used:.0f} s of processor time and was killed")
            elif used - counted > _IDLE_SHARE * (now - moved_at):
                counted, moved_at = used, now
            elif now - moved_at >= idle_seconds:
                problem.append(f"it did nothing for {now - moved_at:.0f} s and was killed")
            if problem:
                kill(process.pid)
                return

    watcher = threading.Thread(target=watch, name="standstill", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        watcher.join()
    assert not problem, f"{process.args}: {problem[0]}"


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and its children, ended ones included."""
    total = 0.0
    for process in _tree(pid):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # it ended between the two looks at it
    return total


def alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    """Kill a process and its children."""
    for process in _tree(pid):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []
