"""Run tests in a fresh workspace. Expected values stay outside, so that tested code can neither read nor forge them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from fnmatch import translate
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sandbox.errors import Starved, Unusable, WorkspaceLost
from sandbox.workspace import Changes, Image, Observation, Workspace

PROTECTED = (
    *("conftest.py", "sitecustomize", "sitecustomize.py", "usercustomize", "usercustomize.py"),
    *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
    *("tests", "test_*.py", "*_test.py", "*.pth", "*.so", "*.pyc"),
)
"""Names of files and folders whose changes never reach the tests, in addition to those that a request protects."""

_IS_PROTECTED = re.compile("|".join(map(translate, PROTECTED)))

Result = TypeVar("Result")


class Opener(Protocol):
    """The part of a `Runner` that tests need."""

    def open(
        self, files: dict[str, str] | None = None, image: Image | None = None, *, seconds: float | None = None
    ) -> Workspace: ...


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


def run_checks(
    runner: Opener, files: dict[str, str], patch: Changes, checks: Sequence[Check], seconds: float = 900.0
) -> list[Verdict]:
    """Run the checks on `files` with the patch applied, in a fresh workspace.

    Each check has the limits of a cell, and all together `seconds`. One REPL serves them all unless a check ends it. A patch
    that cannot be applied, or that ends its workspace twice, fails them.

    Raises:
        Starved: a check ran out of wall time because the machine is busy.
        Unusable: the files cannot be written without the patch.
        WorkspaceLost: the workspace has ended once more without the patch.
    """
    files = {normpath(path): text for path, text in files.items()}
    changed, deleted = _allowed(patch, {path for path in files if _protected(path)})
    patched = {path: text for path, text in files.items() if path not in deleted} | changed
    try:
        return _twice(lambda: _verdicts(runner, patched, checks, until=time.monotonic() + seconds))
    except (Unusable, WorkspaceLost) as error:
        runner.open(files).close()  # without the patch a workspace opens, so the patch is to blame
        return [Verdict(passed=False, found=f"no value: {error}"[:500])] * len(checks)


def _verdicts(runner: Opener, files: dict[str, str], checks: Sequence[Check], *, until: float) -> list[Verdict]:
    workspace = runner.open(files)
    try:
        verdicts = []
        for check in checks:
            if time.monotonic() > until:
                verdicts.append(Verdict(passed=False, found="no value: the tests together take too long"))
                continue
            found = _evaluated(workspace, check.code)
            shown = found.value if found.value is not None else f"no value: {found.ended}"
            verdicts.append(
                Verdict(passed=found.value is not None and found.value == check.expected, found=shown[:500])
            )
        return verdicts
    finally:
        workspace.close()


def _twice(run: Callable[[], Result]) -> Result:
    """Run once more what has lost its workspace: bad luck does not repeat, code that ends its workspace does."""
    try:
        return run()
    except WorkspaceLost:
        return run()


def run_suite(runner: Opener, image: Image, patch: Changes, suite: Suite, *, seconds: float) -> list[Verdict]:
    """Run a repository's own tests with the patch applied, in a fresh workspace.

    The verdicts are those of the expected tests, and one more that fails for each test that was not expected. The tested
    code runs in the process that reports, so code that prints a false report is believed.

    Raises:
        Starved: they ran out of wall time because the machine is busy.
        Unusable: there is no such image.
    """
    folder = PurePosixPath(image.folder)
    hidden = [PurePosixPath(normpath(place)) for place in image.hidden]
    inside = [str(place.relative_to(folder)) for place in hidden if place.is_relative_to(folder)]
    changed, deleted = _allowed(patch, set(inside))
    run = _RUN.format(gone=sorted(deleted), command=suite.command, report=_REPORT)

    def report() -> str:
        workspace = runner.open(image=image.model_copy(update={"hidden": ()}), seconds=seconds)
        try:
            with contextlib.suppress(Unusable):  # a patch that cannot be applied: no test runs, and all fail
                workspace.write_files(changed)
                _evaluated(workspace, run)
                return _report(workspace)
            return ""
        finally:
            workspace.close()

    try:
        found = pytest_summary(_twice(report))
    except WorkspaceLost:
        runner.open(image=image).close()
        found = {}
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


def _allowed(patch: Changes, kept: set[str]) -> tuple[dict[str, str], set[str]]:
    """Return the changed files and the deleted paths of a patch that may reach the tests, by their plain spelling.

    Neither protected names nor what is `kept` are replaced, also not by a folder, or by a file in place of a folder that
    has them.
    """

    def allowed(path: str) -> bool:
        # By beginnings, because a list of all folders above grows with the square of the depth.
        return not _protected(path) and not any(
            each in (path, ".") or path.startswith(f"{each}/") or each.startswith(f"{path}/") for each in kept
        )

    changed = {normpath(path): text for path, text in patch.changed.items() if path}
    deleted = {normpath(path) for path in patch.deleted if path}
    return {path: text for path, text in changed.items() if allowed(path)}, {path for path in deleted if allowed(path)}


def _protected(path: str) -> bool:
    return any(map(_IS_PROTECTED.match, path.split("/")))
