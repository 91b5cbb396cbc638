"""What the processes of a workspace use. The init is process 1 and does not count."""

from __future__ import annotations

import contextlib
import os

TICK = os.sysconf("SC_CLK_TCK")
_KEPT = ("RssAnon", "RssShmem")


def running() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def cpu_seconds(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


def is_runnable(pid: int) -> bool:
    """Return whether a thread of the process runs or waits for a processor, instead of sleeping."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "R":
                    return True
    except OSError:
        pass  # it ended meanwhile
    return False


def memory_bytes() -> int:
    """Return the anonymous memory of all processes, shared or not, and their anonymous files.

    What several processes share counts for each of them.
    """
    total = 0
    for pid in running():
        with contextlib.suppress(OSError, ValueError, KeyError):  # it ended meanwhile
            with open(f"/proc/{pid}/status") as file:
                kilobytes = {
                    name: int(value.split()[0])
                    for name, _, value in (line.partition(":") for line in file)
                    if name in _KEPT
                }
            in_files = 0
            for handle in os.listdir(f"/proc/{pid}/fd"):
                place = f"/proc/{pid}/fd/{handle}"
                if os.readlink(place).startswith("/memfd:"):
                    in_files += os.stat(place).st_blocks * 512
            # Mapped anonymous files are shared memory too.
            total += kilobytes["RssAnon"] * 1024 + max(kilobytes["RssShmem"] * 1024, in_files)
    return total
