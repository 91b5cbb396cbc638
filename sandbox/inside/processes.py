"""What the processes of a workspace use. The init is process 1 and does not count."""

from __future__ import annotations

import contextlib
import os

TICK = os.sysconf("SC_CLK_TCK")
_KEPT = ("RssAnon", "RssShmem", "VmSwap")


def running() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def threads(pid: int) -> list[int]:
    """Return the threads of a process; none if it has ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def cpu_seconds(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


class ProcessorQueue:
    """How long a workspace has been held up because the processor was busy."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Sum of what the thread that waited longest has waited between two looks, as the scheduler counts."""
        self._seen: dict[int, float] | None = None

    def look(self) -> bool:
        """Add what has been waited since the last look. Return whether a thread runs or is ready to now."""
        ready, waited = False, {}
        for pid in running():
            for thread in threads(pid):
                place = f"/proc/{pid}/task/{thread}"
                with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                    with open(f"{place}/stat") as file:
                        ready = file.read().rpartition(")")[2].split()[0] == "R" or ready
                    with open(f"{place}/schedstat") as file:
                        waited[thread] = int(file.read().split()[1]) / 1e9
        if self._seen is not None:
            more = (seconds - self._seen.get(thread, 0.0) for thread, seconds in waited.items())
            self.seconds += max(more, default=0.0)
        self._seen = waited
        return ready


def memory_bytes() -> int:
    """Return the anonymous memory of all processes, shared or not, swapped or not, and their anonymous files.

    What several processes share counts for each of them.
    """
    return sum(map(_memory_of, running()))


def _memory_of(pid: int) -> int:
    for thread in threads(pid):  # any one that has not ended, which the first one may have
        try:
            with open(f"/proc/{pid}/task/{thread}/status") as file:
                lines = (line.partition(":") for line in file)
                found = {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in _KEPT}
            if found:
                # Mapped anonymous files are shared memory too.
                shared = max(found["RssShmem"], _anonymous_files(f"/proc/{pid}/task/{thread}/fd"))
                return found["RssAnon"] + found.get("VmSwap", 0) + shared
        except OSError:
            continue
    return 0


def _anonymous_files(folder: str) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for handle in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{handle}").startswith("/memfd:"):
                    total += os.stat(f"{folder}/{handle}").st_blocks * 512
    return total
