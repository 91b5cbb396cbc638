"""The pinned environments: complete, what is installed, in agreement with each other, and resolvable."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = ["agent", "cluster", "configs", "environment", "materializers", "pipelines", "reports", "sandbox", "serving", "steps", "tasks"]
MODULES = [ROOT / "run.py", *(file for room in (*ROOMS, "training") for file in sorted((ROOT / room).rglob("*.py")))]
# ART's GPU backend pins these itself, or pins what limits them.
OWN_ON_GPU = {"torch", "transformers", "wandb", "datasets", "huggingface-hub"}


def pins(file: str) -> dict[str, str]:
    """Version by distribution; every line must pin exactly one."""
    versions = {}
    for line in (ROOT / file).read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            versions[canonicalize_name(requirement.name)] = specifier.version
    return versions


def test_environments_differ_only_where_art_says_so() -> None:
    cpu, gpu = pins("requirements.txt"), pins("requirements-gpu.txt")
    assert cpu.keys() - gpu.keys() == set()
    assert {name for name in cpu if cpu[name] != gpu[name]} == OWN_ON_GPU


def test_gpu_pins_are_the_ones_of_arts_backend() -> None:
    backend = [Requirement(line) for line in importlib.metadata.requires("openpipe-art") or []]
    gpu = pins("requirements-gpu.txt")
    wanted = {r.name: str(r.specifier) for r in backend if r.marker and r.marker.evaluate({"extra": "backend"})}
    assert {name: wanted[name] for name in ("torch", "transformers", "wandb")} == {
        name: f"=={gpu[name]}" for name in ("torch", "transformers", "wandb")
    }


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_installed_is_what_is_pinned(file: str) -> None:
    # A CPU build calls itself 2.13.0+cpu.
    installed = {name: importlib.metadata.version(name).split("+")[0] for name in pins(file)}
    assert installed == pins(file)


def test_every_import_is_pinned() -> None:
    """No module relies on a package that only happens to be there because another one needs it."""
    distributions = importlib.metadata.packages_distributions()
    ours = {file.relative_to(ROOT).parts[0] for file in MODULES}
    pinned = pins("requirements.txt").keys()
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for package in {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names:
                owners = {canonicalize_name(owner) for owner in distributions.get(package, [])}
                assert owners & pinned, f"{file.relative_to(ROOT)} imports {package}, which is not pinned"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("file", "python"),
    [
        ("requirements.txt", "3.11"),
        ("requirements.txt", "3.12"),
        ("requirements.txt", "3.13"),
        ("requirements-gpu.txt", "3.11"),
        ("requirements-gpu.txt", "3.12"),
    ],
)
def test_resolves_from_wheels(file: str, python: str) -> None:
    """A consistent set of versions exists for each supported Python, all as wheels; nothing is installed."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--only-binary", ":all:"]
    command += ["--python-platform", "x86_64-manylinux_2_34", "--python-version", python, str(ROOT / file)]
    result = subprocess.run(command, capture_output=True, text=True)
    # uv's two words for an index that does not answer; everything else is a conflict that must be repaired.
    if result.returncode != 0 and ("Failed to fetch" in result.stderr or "error sending request" in result.stderr):
        pytest.skip("the package index cannot be reached")
    assert result.returncode == 0, result.stderr
    resolved = dict(line.split("==") for line in result.stdout.splitlines() if "==" in line and line[0].isalpha())
    assert {name: resolved[name] for name in pins(file)} == pins(file)
    if file == "requirements-gpu.txt":
        assert resolved["nvidia-cuda-runtime-cu12"].startswith("12.8.")
