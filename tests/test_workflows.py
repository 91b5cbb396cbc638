"""The workflows call make targets that exist, on every supported Python; nightly tests run only when asked for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


def targets() -> set[str]:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    return set(phony[1].split())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_call_make_targets(file: Path) -> None:
    commands = [step["run"] for job in jobs(file).values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        program, target, *_ = command.split()
        assert program == "make" and target in targets(), command


def test_the_tests_run_on_every_supported_python() -> None:
    supported = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    found = jobs(ROOT / ".github" / "workflows" / "checks.yml")
    [oldest] = [
        step["with"]["python-version"] for step in found["test"]["steps"] if "setup-python" in step.get("uses", "")
    ]
    tested = [oldest, *found["test-fast"]["strategy"]["matrix"]["python"]]
    assert tested == [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported]


def test_every_make_target_is_described() -> None:
    described = re.findall(r"make ([a-z0-9-]+)", (ROOT / "Makefile").read_text().partition("PYTHON ?=")[0])
    assert targets() <= set(described)


@pytest.mark.parametrize(("words", "found"), [([], False), (["-m", "not cluster"], False), (["-m", "nightly"], True)])
def test_nightly_tests_run_only_when_named(words: list[str], found: bool) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-n", "0", *words]
    shown = subprocess.run([*command, "tests/test_accuracy_floor.py"], cwd=ROOT, capture_output=True, text=True).stdout
    assert ("test_the_default_profile_reaches_its_accuracy_floor" in shown) is found, shown
