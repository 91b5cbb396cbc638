"""Stop a process so that nothing that it has prepared can wake it: no timer, no file event, no thread."""

from __future__ import annotations

import ctypes
import errno
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
    # A stop sends this signal. It is blocked so that none is missed between looking and waiting.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        while new := [thread for thread in threads(pid) if thread not in held]:
            for thread in new:
                if _ptrace(SEIZE, thread) == 0:
                    if _stopped(thread, until):
                        held.append(thread)
                    elif thread == pid:
                        raise Unstoppable
                elif not held and ctypes.get_errno() == errno.EPERM and thread == pid and _alive(pid):
                    os.kill(pid, signal.SIGSTOP)
                    return []
                elif thread in threads(pid):
                    raise Unstoppable
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return held


def _stopped(thread: int, until: float) -> bool:
    """Stop a traced thread. Return whether it has not ended instead."""
    _ptrace(INTERRUPT, thread)
    while True:
        found, status = os.waitpid(thread, ALL_CHILDREN | os.WNOHANG)
        if found:
            return os.WIFSTOPPED(status)
        if (left := until - time.monotonic()) <= 0:
            raise Unstoppable
        signal.sigtimedwait([signal.SIGCHLD], left)


def release(pid: int, held: list[int]) -> list[int]:
    """Let a child go on that `hold` has stopped. Return the threads that are still held: none."""
    for thread in held:
        _ptrace(DETACH, thread)
    os.kill(pid, signal.SIGCONT)
    return []


def _alive(pid: int) -> bool:
    """Return whether the first thread of a process has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _ptrace(request: int, thread: int) -> int:
    return int(libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None))
