"""What the tests cost: the slowest ones and the seconds per folder, on the console and in `outputs/test_durations.json`.

Wall time depends on what else the machine does, so processor time is recorded too: that of the test's process and of the
children it has waited for. The next run starts the slowest files first.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "outputs" / "test_durations.json"
SLOWEST = 40


def read_seconds() -> dict[str, float]:
    """Return the seconds of each test file in the last recorded run, by path; empty without one."""
    try:
        return dict(json.loads(FILE.read_text())["files"])
    except (OSError, ValueError, KeyError):
        return {}


class Durations:
    """A pytest plugin that adds up the phases of each test. Workers measure processor time and send it with their reports."""

    def __init__(self) -> None:
        self._cpu = _cpu_seconds()
        self._wall: dict[str, float] = defaultdict(float)
        self._used: dict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self) -> None:
        self._cpu = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: pytest.TestReport = yield
        before, self._cpu = self._cpu, _cpu_seconds()
        report.cpu_seconds = self._cpu - before
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._wall[report.nodeid] += report.duration
        self._used[report.nodeid] += getattr(report, "cpu_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._wall:
            return
        files: dict[str, float] = defaultdict(float)
        folders: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for test, seconds in self._wall.items():
            file = test.partition("::")[0]
            files[file] += seconds
            total = folders[str(Path(file).parent)]
            total[0], total[1], total[2] = total[0] + seconds, total[1] + self._used[test], total[2] + 1
        terminalreporter.section(f"{SLOWEST} slowest tests: seconds, processor seconds")
        for test, seconds in sorted(self._wall.items(), key=lambda item: -item[1])[:SLOWEST]:
            terminalreporter.write_line(f"{seconds:8.1f} {self._used[test]:8.1f}  {test}")
        terminalreporter.section("folders: seconds, processor seconds, tests")
        for folder, (seconds, used, count) in sorted(folders.items(), key=lambda item: -item[1][0]):
            terminalreporter.write_line(f"{seconds:8.1f} {used:8.1f} {count:6}  {folder}")
        FILE.parent.mkdir(exist_ok=True)
        written = FILE.with_suffix(".partial")
        values = {"files": read_seconds() | files, "tests": self._wall, "cpu_seconds": self._used}
        written.write_text(json.dumps(values, indent=1))
        written.replace(FILE)


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
