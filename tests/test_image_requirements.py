"""What ZenML installs into the images, in its order: the versions of the locks come last, and all that it adds fits them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from zenml.config.docker_settings import DockerSettings
from zenml.integrations.kubernetes import KubernetesIntegration
from zenml.integrations.s3 import S3Integration
from zenml.utils.pipeline_docker_image_builder import PipelineDockerImageBuilder

from configs.loading import load_config
from tests.test_requirements import pins

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
