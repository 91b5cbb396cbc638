"""A ZenML configuration that is new and ready: its database is made once and copied, which saves seconds per copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def make_original(folder: Path) -> None:
    """Let ZenML set up a new configuration in `folder`, unless it is there already."""
    if folder.exists():
        return
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZENML_")}
    environment |= {"ZENML_CONFIG_PATH": str(partial), "ZENML_ANALYTICS_OPT_IN": "false"}
    command = [sys.executable, "-c", "from zenml.client import Client; Client().active_stack_model"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    # The paths of the store are those of the folder that it was made in: ZenML finds them anew.
    file = partial / "config.yaml"
    file.write_text(
        yaml.safe_dump({key: value for key, value in yaml.safe_load(file.read_text()).items() if key != "store"})
    )
    try:
        partial.rename(folder)
    except OSError:  # another run of the tests was faster
        shutil.rmtree(partial)


def copy_original(original: Path, folder: Path) -> None:
    """Copy it to `folder`, which may exist."""
    shutil.copytree(original, folder, dirs_exist_ok=True)
