"""Stop a process so that nothing that it has prepared can wake it: no timer, no file event, no thread."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from sandbox.inside.confinement import libc
from sandbox.inside.processes import threads

SEIZE, INTERRUPT, DETACH, ALL_CHILDREN = 0x4206, 0x4207, 17, 0x40000000
SECONDS = 1.0


class Unstoppable(Exception):
    """A process that cannot be stopped."""


def hold(pid: int) -> list[int]:
    """Stop all threads of a child, and return them. A tracer's stop is left by SIGKILL or `release` only.

    Where tracing is forbidden, it is stopped with SIGSTOP, which SIGCONT undoes, and no thread is returned.

    Raises:
        Unstoppable: it has ended or does not stop.
    """
    held: list[int] = []
    until = time.monotonic() + SECONDS
    while new := [thread for thread in threads(pid) if thread not in held]:
        for thread in new:
            if _ptrace(SEIZE, thread) != 0:
                if not held and ctypes.get_errno() == 1 and thread == pid and _alive(pid):
                    os.kill(pid, signal.SIGSTOP)
                    return []
                if thread in threads(pid):
                    raise Unstoppable
                continue
            _ptrace(INTERRUPT, thread)
            while True:
                found, status = os.waitpid(thread, ALL_CHILDREN | os.WNOHANG)
                if found:
                    break
                if time.monotonic() > until:
                    raise Unstoppable
                os.sched_yield()  # to the thread, which has to run to stop
            if os.WIFSTOPPED(status):
                held.append(thread)
            elif thread == pid:
                raise Unstoppable
    return held


def release(pid: int, held: list[int]) -> None:
    """Let a child go on that `hold` has stopped."""
    for thread in held:
        _ptrace(DETACH, thread)
    os.kill(pid, signal.SIGCONT)


def _alive(pid: int) -> bool:
    """Return whether the first thread of a process has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _ptrace(request: int, thread: int) -> int:
    return int(libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None))
