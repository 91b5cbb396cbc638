"""Measure the sandbox: the start of 32 concurrent workspaces, a cell compared with `python -c`, and leaks after many
workspaces.

  python -m benchmarks.sandbox
  python -m benchmarks.sandbox --workspaces 1000 --cells 10000      the leak check at full length

Prints one JSON line. Times are in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from sandbox.local import LocalRunner
from sandbox.workspace import Workspace

FILES = {"target.py": "def double(number):\n    return number + number\n"}
AT_ONCE = 32


def milliseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def start(runner: LocalRunner) -> tuple[float, Workspace]:
    """Open a workspace. Return the time that this took, and the workspace."""
    began = time.perf_counter()
    workspace = runner.open(FILES)
    return (time.perf_counter() - began) * 1000, workspace


def spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {"median": round(statistics.median(ordered), 2), "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2)}


def held() -> dict[str, int]:
    """Return what could leak on the host. Files cannot: those of a workspace are in memory, in its mount namespace."""
    return {
        "processes": len(psutil.Process().children(recursive=True)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def settled() -> dict[str, int]:
    """Return what is held after ended processes have been reaped, that is, once it stays the same for a second."""
    found, since = held(), time.monotonic()
    while time.monotonic() - since < 1.0:
        time.sleep(0.05)
        if (now := held()) != found:
            found, since = now, time.monotonic()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="times that 32 workspaces are started at once")
    parser.add_argument("--workspaces", type=int, default=200, help="workspaces of the leak check")
    parser.add_argument("--cells", type=int, default=2000, help="cells of the leak check, all workspaces together")
    arguments = parser.parse_args()
    runner = LocalRunner()
    runner.require_isolation()
    before = settled()
    started = [start(runner) for _ in range(AT_ONCE)]
    alone = [taken for taken, _ in started]
    for _, workspace in started:
        workspace.close()
    at_once: list[float] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in range(arguments.rounds):
            started = list(threads.map(lambda _: start(runner), range(AT_ONCE)))
            at_once += [taken for taken, _ in started]
            list(threads.map(lambda pair: pair[1].close(), started))
    workspace = runner.open(FILES)
    cells = [milliseconds(lambda: workspace.exec("1 + 1")) for _ in range(200)]
    workspace.close()
    plain = [milliseconds(lambda: subprocess.run([sys.executable, "-c", "1 + 1"], check=True)) for _ in range(50)]
    per_workspace = max(1, arguments.cells // arguments.workspaces)
    began = time.perf_counter()
    for _ in range(arguments.workspaces):
        workspace = runner.open(FILES)
        for number in range(per_workspace):
            assert workspace.exec(f"import target; target.double({number})").output == f"{2 * number}\n"
        workspace.close()
    seconds = time.perf_counter() - began
    after = settled()
    runner.close()
    print(
        json.dumps(
            {
                "benchmark": "sandbox",
                "start_one_after_another_ms": spread(alone),
                "start_32_at_once_ms": spread(at_once),
                "cell_ms": spread(cells),
                "python_c_ms": spread(plain),
                "leak_check": {
                    "workspaces": arguments.workspaces,
                    "cells": per_workspace * arguments.workspaces,
                    "seconds": round(seconds, 1),
                    "left_behind": {name: after[name] - before[name] for name in before},
                },
                "load": round(os.getloadavg()[0], 1),
            }
        )
    )


if __name__ == "__main__":
    main()
