"""The image of the service: what it leaves out is not needed to read mail, serve, ask and export."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from docker.utils.build import exclude_paths
from packaging.utils import canonicalize_name

from configs.loading import load_config
from tests.test_requirements import pins

ROOT = Path(__file__).parents[1]
LEFT_OUT = (ROOT / "images" / "service.without.txt").read_text().split()
DOCKERFILE = (ROOT / "images" / "service.Dockerfile").read_text()
SERVICE = yaml.safe_load((ROOT / "images" / "compose.yaml").read_text())["services"]["agent"]
BLOCKED = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.partition(".")[0] in sys.argv[1].split() else find(name, *where)
import run
run.quiet_third_parties()
import commands.ask, commands.data, commands.deploy, commands.dry_run, commands.export, commands.mcp
import serving.app, serving.policy_program, serving.runner, serving.service, steps.inference.service_lifecycle
import training.backends.gguf_conversion, training.backends.torch.server
"""


def test_what_is_left_out_is_in_the_lock() -> None:
    assert set(LEFT_OUT) <= pins("requirements.txt").keys()


@pytest.mark.service
def test_nothing_that_serves_needs_what_is_left_out() -> None:
    owners = importlib.metadata.packages_distributions()
    blocked = {
        module for module, names in owners.items() if {canonicalize_name(name) for name in names} <= set(LEFT_OUT)
    }
    assert {"art", "wandb", "polars"} <= blocked
    words = [sys.executable, "-c", BLOCKED, " ".join(blocked)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_neither_keys_nor_mail_nor_the_adapter_come_into_the_image(tmp_path: Path) -> None:
    text = (ROOT / "images" / "compose.yaml").read_text()
    defaults = re.findall(r"\$\{[A-Z]+:-\.\./([^}]+)\}", text)
    assert len(defaults) == 3
    for name in (*defaults, "run.py"):
        (tmp_path / name).write_text("x")
    # What is copied stays in a layer of the image, although the folder is removed afterwards.
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert exclude_paths(str(tmp_path), ignored) == {"run.py"}


def test_a_missing_folder_is_an_error_and_the_page_names_folders_by_absolute_paths() -> None:
    mounts = [mount for mount in SERVICE["volumes"] if mount != "data:/data"]
    assert [mount["target"] for mount in mounts] == ["/model", "/mail"]
    assert all(mount["read_only"] and mount["bind"] == {"create_host_path": False} for mount in mounts)
    names = re.findall(r"\$\{([A-Z]+):-", (ROOT / "images" / "compose.yaml").read_text())
    assert "MAIL" not in names, "login shells set it to the user's spool"
    page = (ROOT / "docs" / "container.md").read_text()
    values = re.findall(rf"\b(?:{'|'.join(names)})=(\S+)", page)
    assert len(values) == 4 and all(value.startswith("$PWD/") for value in values)


def test_the_compose_file_is_valid_and_confines_the_service() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "images/compose.yaml",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert SERVICE["read_only"] is True and SERVICE["cap_drop"] == ["ALL"] and "\nUSER agent\n" in DOCKERFILE
    config = load_config(ROOT / "configs" / "service_image.yaml", [])
    targets = {secret["target"] for secret in SERVICE["secrets"]}
    service = config.deployment
    assert service.access_keys and Path(service.access_keys).name in targets
    [port] = SERVICE["ports"]
    assert port == f"127.0.0.1:{service.port}:{service.port}" and f"127.0.0.1:{service.port}/health" in DOCKERFILE
    assert config.settings["deployer"]["blocking"] is True
