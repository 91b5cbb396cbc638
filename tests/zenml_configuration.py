"""A ZenML configuration that is new and ready: its database is made once and copied, which saves seconds per copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
ORIGINAL = ROOT / ".pytest_cache" / f"zenml-{version('zenml')}"


def make_original() -> None:
    """Let ZenML set up a new configuration, unless there is one of an earlier run of the tests."""
    if ORIGINAL.exists():
        return
    partial = ORIGINAL.with_name(f"{ORIGINAL.name}.{os.getpid()}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZENML_")}
    environment |= {"ZENML_CONFIG_PATH": str(partial), "ZENML_ANALYTICS_OPT_IN": "false"}
    command = [sys.executable, "-c", "from zenml.client import Client; Client().active_stack_model"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    file = partial / "config.yaml"
    values = yaml.safe_load(file.read_text()) | {"analytics_opt_in": False}
    del values["store"]  # its paths are those of this folder; ZenML finds the store of a copy anew
    file.write_text(yaml.safe_dump(values))
    try:
        partial.rename(ORIGINAL)
    except OSError:  # another run of the tests was faster
        shutil.rmtree(partial)


def copy_original(folder: Path) -> None:
    """Copy it to `folder`, which may exist. Nothing in the copy tells telemetry: `analytics_opt_in` is off."""
    shutil.copytree(ORIGINAL, folder, dirs_exist_ok=True)
