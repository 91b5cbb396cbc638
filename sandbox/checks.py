"""Run tests in a fresh workspace. Expected values stay outside, so that tested code can neither read nor forge them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch

from pydantic import BaseModel, ConfigDict, Field

from sandbox.errors import Starved, Unusable
from sandbox.workspace import Changes, Image, Observation, Runner, Workspace

PROTECTED = (
    *(
        "conftest.py",
        "*/conftest.py",
        "sitecustomize.py",
        "usercustomize.py",
        "pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    ),
    *("tests/*", "*/tests/*", "test_*.py", "*/test_*.py", "*_test.py", "*.pth", "*.so", "*.pyc"),
)
"""Files whose changes never reach the tests, in addition to those that a request protects."""


class Check(BaseModel):
    """Statements that end in an expression, and its value as `repr` shows it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str = Field(min_length=1, max_length=20_000)
    expected: str = Field(max_length=20_000)
    """For an exception `raises ValueError`."""


class Verdict(BaseModel):
    """The result of one check."""

    passed: bool
    found: str
    """The value, or the reason why there is none; of bounded length."""


class Suite(BaseModel):
    """The tests of a repository's image: a pytest command with `-rA`, and the expected outcomes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str = Field(min_length=1, max_length=20_000)
    expected: dict[str, str] = Field(min_length=1)
    """Outcome by the name of the test without its file: `TestCase.test_name` -> `PASSED`."""


def run_checks(runner: Runner, files: dict[str, str], patch: Changes, checks: Sequence[Check]) -> list[Verdict]:
    """Run the checks on `files` with the patch applied, in a fresh workspace.

    Each check has the limits of a cell. One REPL serves them all unless a check ends it.

    Raises:
        Starved: a check ran out of wall time because the machine is busy.
        Unusable: the patched files cannot be written.
    """
    kept = {path: text for path, text in files.items() if path not in patch.deleted or _protected(path)}
    kept |= {path: text for path, text in patch.changed.items() if not _protected(path)}
    workspace = runner.open(kept)
    try:
        verdicts = []
        for check in checks:
            found = _evaluated(workspace, check.code)
            shown = found.value if found.value is not None else f"no value: {found.ended}"
            verdicts.append(
                Verdict(passed=found.value is not None and found.value == check.expected, found=shown[:500])
            )
        return verdicts
    finally:
        workspace.close()


def run_suite(runner: Runner, image: Image, patch: Changes, suite: Suite, *, seconds: float) -> list[Verdict]:
    """Run a repository's own tests with the patch applied, in a fresh workspace.

    The verdicts are those of the expected tests, and one more that fails for each test that was not expected. The tested
    code runs in the process that reports, so code that prints a false report is believed.

    Raises:
        Starved: they ran out of wall time because the machine is busy.
        Unusable: there is no such image, or the patched files cannot be written.
    """
    workspace = runner.open(image=image.model_copy(update={"hidden": ()}), seconds=seconds)
    try:
        hidden = tuple(image.hidden)

        def allowed(path: str) -> bool:
            place = f"{image.folder}/{path}"
            return not _protected(path) and not any(place == each or place.startswith(f"{each}/") for each in hidden)

        workspace.write_files({path: text for path, text in patch.changed.items() if allowed(path)})
        gone = [path for path in patch.deleted if allowed(path)]
        _evaluated(workspace, _RUN.format(gone=gone, command=suite.command, report=_REPORT))
        found = pytest_summary(_report(workspace))
    finally:
        workspace.close()
    expected = {_name(name): outcome for name, outcome in suite.expected.items()}
    verdicts = [
        Verdict(passed=found.get(name) == outcome, found=found.get(name, "no such test ran"))
        for name, outcome in expected.items()
    ]
    unexpected = sorted(found.keys() - expected.keys())
    return verdicts + [Verdict(passed=False, found=f"unexpected test {name}"[:500]) for name in unexpected]


def _evaluated(workspace: Workspace, code: str) -> Observation:
    """Return what an expression yields.

    Code that sleeps or waits until the limit has failed. Code that was ready to run and did not get the processor has not:
    elsewhere it might have been in time.

    Raises:
        Starved: it ran out of wall time because the machine is busy.
    """
    found = workspace.evaluate(code)
    if found.starved:
        raise Starved(f"this machine is too busy to run the tests: {found.ended}, mostly spent waiting for a processor")
    return found


def pytest_summary(report: str) -> dict[str, str]:
    """Parse a report of `pytest -rA`: test name without its file -> outcome."""
    _, _, summary = _COLOUR.sub("", report).rpartition("short test summary info")
    found = {}
    for line in summary.splitlines():
        outcome, _, rest = line.strip().partition(" ")
        if outcome in ("PASSED", "FAILED", "ERROR"):
            found[_name(".".join(rest.split("::")[1:]))] = outcome
    return found


def _name(shown: str) -> str:
    """Return a test's name without anything that looks like the reason of a failure, as R2E-Gym compares names."""
    return shown.partition(" - ")[0]


_REPORT = ".sandbox-report"
_RUN = """
import os, subprocess
for path in {gone!r}:
    if os.path.lexists(path):
        os.unlink(path)
with open({report!r}, "wb") as report:
    subprocess.run(["sh", "-c", {command!r}], stdin=subprocess.DEVNULL, stdout=report, stderr=subprocess.STDOUT)
0
"""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _report(workspace: Workspace) -> str:
    """Return what the tests printed; empty if they ended before printing anything."""
    try:
        return workspace.read_file(_REPORT, 8 << 20)
    except Unusable:
        return ""


def _protected(path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in PROTECTED)
