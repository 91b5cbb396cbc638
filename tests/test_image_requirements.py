"""What ZenML installs into the images, in its order: the versions of the locks come last, and all that it adds fits them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from zenml.config.docker_settings import DockerSettings
from zenml.integrations.kubernetes import KubernetesIntegration
from zenml.integrations.s3 import S3Integration
from zenml.utils.pipeline_docker_image_builder import PipelineDockerImageBuilder

from configs.loading import load_config
from tests.test_requirements import compiled, pins

ROOT = Path(__file__).parents[1]
OF_THE_STACK = {*KubernetesIntegration.REQUIREMENTS, *S3Integration.REQUIREMENTS}
PROFILES = sorted({file.name for file in (ROOT / "configs").glob("*_k8s*.yaml")} - {"stack_k8s.yaml"})


def images(profile: str) -> list[dict[str, Any]]:
    config = load_config(ROOT / "configs" / profile, [])
    of_steps = [step["settings"]["docker"] for step in config.step_settings.values()]
    return [config.settings["docker"], *of_steps]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_lock_of_the_image_is_installed_last(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stack = SimpleNamespace(requirements=lambda: set(OF_THE_STACK))
    for settings in images(profile):
        files = PipelineDockerImageBuilder().gather_requirements_files(
            DockerSettings.model_validate(settings),
            stack,  # type: ignore[arg-type]
            log=False,
            extra_requirements_files={".zenml_deployment_requirements": ["uvicorn"]},
        )
        lock = re.search(r"COPY (requirements\S*\.txt)", (ROOT / settings["dockerfile"]).read_text())
        assert lock and files[-1][1] == (ROOT / lock[1]).read_text() and len(files) == 3


@pytest.mark.parametrize("image", ["cpu", "gpu"])
def test_nothing_else_may_leave_the_lock(image: str) -> None:
    text = (ROOT / "images" / f"{image}.Dockerfile").read_text()
    lock = "requirements-gpu.txt" if image == "gpu" else "requirements.txt"
    assert f"RUN sed '/^kubernetes=/d' {lock} > constraints.txt\nENV PIP_CONSTRAINT=/app/constraints.txt" in text


@pytest.mark.nightly
@pytest.mark.parametrize(("lock", "python"), [("requirements.txt", "3.11"), ("requirements-gpu.txt", "3.12")])
def test_what_the_stack_adds_fits_the_lock(lock: str, python: str, tmp_path: Path) -> None:
    lines = (ROOT / lock).read_text().splitlines()
    (tmp_path / "constraints.txt").write_text("\n".join(line for line in lines if not line.startswith("kubernetes==")))
    (tmp_path / "stack.txt").write_text("\n".join(sorted(OF_THE_STACK)))
    words = ["--constraint", "constraints.txt", "--python-version", python, "--python-platform", "linux", "--no-header"]
    resolved = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", *words, "stack.txt"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert resolved.returncode == 0, resolved.stderr[-2000:]
    added = dict(line.split("==") for line in resolved.stdout.split())
    locked = pins(lock, python)
    differ = {name for name, version in added.items() if name in locked and locked[name] != version}
    assert "s3fs" in added and differ == {"kubernetes"}, "installing the lock last puts it back"


@pytest.mark.nightly
@pytest.mark.parametrize(("image", "python"), [("cpu", "3.11"), ("gpu", "3.12")])
def test_the_installed_versions_are_those_of_the_lock(image: str, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes, of which nothing is kept; with `-s` it prints the size."""
    monkeypatch.chdir(ROOT)
    config = load_config(ROOT / "configs" / "training_k8s.yaml", [])
    settings = (config.settings if image == "cpu" else config.step_settings["train_agent"]["settings"])["docker"]
    locked = pins(settings["requirements"], python)
    with tempfile.TemporaryDirectory(prefix=f"image-{image}-") as folder:
        app, venv = Path(folder) / "app", Path(folder) / "venv"
        app.mkdir()
        compiled([sys.executable, "-m", "uv", "venv", "--quiet", "--seed", "--python", python, str(venv)], app)
        seeded = installed(venv).keys()
        environment = os.environ | {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)}
        install((ROOT / settings["dockerfile"]).read_text(), app, environment)
        of_the_project = installed(venv)
        install(zenml_dockerfile(settings, app), app, environment)
        whole = installed(venv)
        size = subprocess.run(["du", "-sm", venv / "lib"], capture_output=True, text=True, check=True).stdout.split()[0]
    added = {name: version for name, version in whole.items() if name not in of_the_project}
    print(f"{image}: {len(locked)} versions of the lock, {size} MiB in {venv.name}/lib; by ZenML {added}")
    assert of_the_project.keys() - locked.keys() <= seeded, "all that the project brings is locked"
    assert {name: whole.get(name) for name in locked} == locked


def installed(venv: Path) -> dict[str, str]:
    """Return the versions in an environment. A CPU build of torch calls itself 2.13.0+cpu."""
    listed = subprocess.run(
        [venv / "bin/python", "-m", "pip", "list", "--format=json"], capture_output=True, check=True
    )
    return {canonicalize_name(line["name"]): line["version"].split("+")[0] for line in json.loads(listed.stdout)}


def zenml_dockerfile(settings: dict[str, Any], app: Path) -> str:
    """Return the Dockerfile that ZenML adds to the project's, and write the requirements that it copies."""
    stack: Any = SimpleNamespace(requirements=lambda: set(OF_THE_STACK))
    docker, builder = DockerSettings.model_validate(settings), PipelineDockerImageBuilder()
    files = builder.gather_requirements_files(docker, stack, log=False)
    for name, text, _ in files:
        (app / name).write_text(text)
    return builder._generate_zenml_pipeline_dockerfile("parent", docker, files)


def install(dockerfile: str, app: Path, environment: dict[str, str]) -> None:
    """Do in `app` what a Dockerfile does with pip; the rest concerns users, the project and vLLM's own environment."""
    for line in re.sub(r"\\\n\s*", "", dockerfile).splitlines():
        instruction, _, words = line.partition(" ")
        if instruction == "COPY" and words.startswith("requirements"):
            shutil.copy(ROOT / words.split()[0], app)
        elif instruction in ("ARG", "ENV") and ("TORCH_INDEX" in words or "PIP_CONSTRAINT" in words):
            name, value = words.split("=", 1)
            environment.setdefault(name, value.replace("/app", str(app)))
        elif instruction == "RUN" and shlex.split(words)[0] in ("pip", "sed"):
            subprocess.run(["sh", "-c", words], cwd=app, env=environment, check=True)
