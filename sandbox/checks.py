"""Tests in a fresh workspace. What a check must yield stays outside, so that tested code can neither read nor forge it."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from pydantic import BaseModel, ConfigDict, Field

from sandbox.local import Changes, LocalRunner

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
"""Files of a patch that never reach the tests, whatever the request protects beyond."""


class Check(BaseModel):
    """Statements that end in an expression, and its value as `repr` shows it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str = Field(min_length=1, max_length=20_000)
    expected: str = Field(max_length=20_000)
    """For an exception `raises ValueError`."""


class Verdict(BaseModel):
    """What came of one check."""

    passed: bool
    found: str
    """The value, or why there is none; bounded."""


def run_checks(runner: LocalRunner, files: dict[str, str], patch: Changes, checks: Sequence[Check]) -> list[Verdict]:
    """Run the checks on `files` with the patch applied, in a workspace that nobody has used.

    Each check has the limits of a cell. One REPL serves them all unless a check ends it.

    Raises:
        Unusable: the patched files cannot be written.
    """
    kept = {path: text for path, text in files.items() if path not in patch.deleted or _protected(path)}
    kept |= {path: text for path, text in patch.changed.items() if not _protected(path)}
    workspace = runner.open(kept)
    try:
        verdicts = []
        for check in checks:
            found = workspace.evaluate(check.code)
            shown = found.value if found.value is not None else f"no value: {found.ended}"
            verdicts.append(
                Verdict(passed=found.value is not None and found.value == check.expected, found=shown[:500])
            )
        return verdicts
    finally:
        workspace.close()


def _protected(path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in PROTECTED)
