"""The pinned requirements: exported from pyproject.toml, complete, installed and resolvable."""

from __future__ import annotations

import ast
import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = ["agent", "cluster", "commands", "configs", "environment", "materializers", "pipelines", "reports", "sandbox"]
ROOMS += ["serving", "steps", "tasks"]
MODULES = [ROOT / "run.py", *(file for room in (*ROOMS, "training") for file in sorted((ROOT / room).rglob("*.py")))]
COMPILE = [sys.executable, "-m", "uv", "pip", "compile", "--quiet"]
# ART's GPU backend pins these itself, or pins what limits them.
OWN_ON_GPU = {"torch", "transformers", "wandb", "datasets", "huggingface-hub"}


# Exported file -> the extras of pyproject.toml that it holds.
EXPORTS = {"requirements.txt": ["cpu"], "requirements-dev.txt": ["cpu", "dev"], "requirements-gpu.txt": ["gpu"]}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGES = [line for line in PROJECT["dependencies"] if ">=" in line]
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux", "os_name": "posix"}


def versions(lines: Iterable[str], python: str | None = None) -> dict[str, str]:
    """Return the version by distribution of requirements that must pin exactly one, as far as they apply to `python`."""
    environment = LINUX | ({"python_version": python, "python_full_version": f"{python}.0"} if python else {})
    found = {}
    for line in lines:
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found[canonicalize_name(requirement.name)] = specifier.version
    return found


def named(extras: Iterable[str]) -> dict[str, str]:
    """Return what pyproject.toml pins with `extras`."""
    optional = PROJECT["optional-dependencies"]
    for_all = [line for line in PROJECT["dependencies"] if line not in RANGES]
    return versions([*for_all, *(line for extra in extras for line in optional[extra])])


def pins(file: str, python: str | None = None) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    return versions([line for line in lines if not line.startswith("#")], python)


@pytest.mark.parametrize("file", EXPORTS)
def test_exported_files_contain_the_pins_of_pyproject(file: str) -> None:
    exported = pins(file)
    expected = named(EXPORTS[file])
    assert {name: exported.get(name) for name in expected} == expected, "run `make lock`"


def test_cpu_exports_leave_cuda_out() -> None:
    for file in ("requirements.txt", "requirements-dev.txt"):
        assert not [name for name in pins(file) if name.startswith(("nvidia-", "cuda-", "triton"))], file


def test_the_gpu_export_has_what_torchs_cuda_build_brings() -> None:
    """The CPU exports leave these out; without them an image would have versions that no lock names."""
    assert {"triton", "cuda-bindings", "cuda-pathfinder", "nvidia-cublas-cu12"} <= pins(
        "requirements-gpu.txt", "3.12"
    ).keys()


def test_versions_stand_in_pyproject_alone() -> None:
    for file in ("Makefile", "images/cpu.Dockerfile", "images/gpu.Dockerfile", ".github/workflows/checks.yml"):
        assert "==" not in (ROOT / file).read_text().replace("'^torch=='", "").replace("'^uv=='", ""), file


def test_environments_differ_only_where_art_says_so() -> None:
    optional = PROJECT["optional-dependencies"]
    assert versions(optional["cpu"]).keys() == OWN_ON_GPU == versions(optional["gpu"]).keys() - {"openpipe-art", "s3fs"}


def test_an_installed_package_has_the_versions_of_cpu_and_may_have_those_of_gpu() -> None:
    cpu, gpu = (versions(PROJECT["optional-dependencies"][extra]) for extra in ("cpu", "gpu"))
    expected = {f"{name}>={gpu[name]},<={cpu[name]}" for name in OWN_ON_GPU}
    assert {f"{canonicalize_name(Requirement(line).name)}{line[line.index('>') :]}" for line in RANGES} == expected


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
    pinned = named(["cpu", "attachments"]).keys()
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for package in {name.split(".")[0] for name in names} - ours - sys.stdlib_module_names:
                owners = {canonicalize_name(owner) for owner in distributions.get(package, [])}
                assert owners & pinned, f"{file.relative_to(ROOT)} imports {package}, which is not pinned"


@pytest.mark.nightly
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
def test_resolves_from_wheels(file: str, python: str, tmp_path: Path) -> None:
    """A consistent set of versions exists for each supported Python, all as wheels; nothing is installed."""
    command = [*COMPILE, "--only-binary", ":all:", "--python-platform", "x86_64-manylinux_2_34"]
    resolved = compiled([*command, "--python-version", python, str(ROOT / file)], tmp_path)
    assert {name: resolved[name] for name in pins(file, python)} == pins(file, python)
    if file == "requirements-gpu.txt":
        assert resolved["nvidia-cuda-runtime-cu12"].startswith("12.8.")
        assert resolved.keys() - pins(file, python).keys() == {"pip"}, "pip comes with the environment"


@pytest.mark.nightly
def test_make_lock_changes_nothing(tmp_path: Path) -> None:
    """The exported files are what `make lock` makes of pyproject.toml today, also for packages that it does not name."""
    for name in ("pyproject.toml", *EXPORTS):
        shutil.copy(ROOT / name, tmp_path)
    for file, extras in EXPORTS.items():
        command = [*COMPILE, "--universal", "--python-version", "3.11", "--no-annotate", "--output-file", file]
        command += [word for extra in extras for word in ("--extra", extra)]
        command += ["--no-config", "--no-emit-package", "pip"] if extras == ["gpu"] else []
        compiled([*command, "--custom-compile-command", "make lock", "pyproject.toml"], tmp_path)
        assert (tmp_path / file).read_text() == (ROOT / file).read_text(), "run `make lock`"


def compiled(command: list[str], folder: Path) -> dict[str, str]:
    """Return what uv resolves, or skip the test without an index."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    # uv's two phrases for an index that does not answer; everything else is a conflict that must be repaired.
    if result.returncode != 0 and ("Failed to fetch" in result.stderr or "error sending request" in result.stderr):
        pytest.skip("the package index cannot be reached")
    assert result.returncode == 0, result.stderr
    lines = [line.split(";")[0].strip() for line in result.stdout.splitlines()]
    return dict(line.split("==") for line in lines if "==" in line and line[0].isalpha())
