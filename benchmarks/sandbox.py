"""Measure the sandbox: the start of 32 concurrent workspaces with and without spare ones, a cell compared with
`python -c`, and leaks after many workspaces.

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


def filled(runner: LocalRunner, count: int) -> None:
    """Wait until the runner has started its spare workspaces."""
    while runner.spares_ready < count:
        time.sleep(0.01)


def starts_at_once(runner: LocalRunner, *, rounds: int, spare: int) -> list[float]:
    """Return the times of starts, `AT_ONCE` at a time, each round with all spare workspaces ready."""
    times: list[float] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda _: time.sleep(0.05), range(AT_ONCE)))  # the threads themselves are not measured
        for _ in range(rounds):
            filled(runner, spare)
            started = list(threads.map(lambda _: start(runner), range(AT_ONCE)))
            times += [taken for taken, _ in started]
            list(threads.map(lambda pair: pair[1].close(), started))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="times that 32 workspaces are started at once")
    parser.add_argument("--workspaces", type=int, default=200, help="workspaces of the leak check")
    parser.add_argument("--cells", type=int, default=2000, help="cells of the leak check, all workspaces together")
    arguments = parser.parse_args()
    plain_runner = LocalRunner()
    plain_runner.require_isolation()
    started = [start(plain_runner) for _ in range(AT_ONCE)]
    alone = [taken for taken, _ in started]
    for _, workspace in started:
        workspace.close()
    at_once = starts_at_once(plain_runner, rounds=arguments.rounds, spare=0)
    plain_runner.close()
    runner = LocalRunner(spare=AT_ONCE)
    runner.require_isolation()
    with_spares = starts_at_once(runner, rounds=arguments.rounds, spare=AT_ONCE)
    filled(runner, AT_ONCE)
    before = settled()
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
    filled(runner, AT_ONCE)
    after = settled()
    runner.close()
    print(
        json.dumps(
            {
                "benchmark": "sandbox",
                "start_one_after_another_ms": spread(alone),
                "start_32_at_once_ms": spread(with_spares),
                "start_32_at_once_without_spares_ms": spread(at_once),
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
