"""A copy of the project in which tests run `run.py`, with its own data, runs and ZenML configuration."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests import fork_server, standstill
from tests.zenml_configuration import copy_original

ROOT = Path(__file__).parents[1]
ROOMS = (
    "agent",
    "cluster",
    "commands",
    "configs",
    "environment",
    "materializers",
    "pipelines",
    "reports",
    "sandbox",
    "serving",
    "steps",
    "tasks",
    "training",
)

ONLY_FOR_TESTS = {
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "disabled",
    "ZENML_ANALYTICS_OPT_IN": "false",
    "ZENML_CUSTOM_SOURCE_ROOT": str(ROOT),  # otherwise the main module's, and a worker of pytest-xdist has none
}
"""Variables for the process of the tests. A user sets none of them, so the commands that stand for a user's get none."""

SMALL_COMPANY = [
    word
    for setting in (
        "synthetic_train_inboxes=1",
        "synthetic_test_inboxes=1",
        "synthetic_questions_per_inbox=24",
    )
    for word in ("--set", setting)
]
"""`run.py` with a company of two mailboxes."""


def user_environment(zenml: Path) -> dict[str, str]:
    """The environment of a user without W&B, whose ZenML configuration is in `zenml`, after `zenml analytics opt-out`."""
    copy_original(zenml)
    left_out = ("PYTEST_", "PYTHON", "WANDB_", "ZENML_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {name: value for name, value in kept.items() if name not in ONLY_FOR_TESTS} | {
        "ZENML_CONFIG_PATH": str(zenml)
    }


def fresh_clone(folder: Path) -> Path:
    """Copy to `folder` what a clone of this project would have, with the changes that are not committed yet."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@dataclass
class Checkout:
    folder: Path
    environment: dict[str, str]

    @classmethod
    def create(cls, folder: Path) -> Checkout:
        for room in ROOMS:
            shutil.copytree(ROOT / room, folder / room)  # with the bytecode, if there is any
        shutil.copy(ROOT / "run.py", folder)
        (ROOT / "models").mkdir(exist_ok=True)
        (folder / "models").symlink_to(ROOT / "models")
        return cls(folder, user_environment(folder / "zenml") | {"HF_HUB_CACHE": _hub(), "COLUMNS": "120"})

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "run.py", *words]

    def run(self, *words: str, idle_seconds: float = standstill.IDLE_SECONDS) -> subprocess.CompletedProcess[str]:
        """run.py with these arguments, to its end."""
        process = fork_server.start(list(words), folder=self.folder, environment=self.environment)
        with standstill.guarded(process, idle_seconds=idle_seconds):
            output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.wait(), output, errors or "")

    def run_alone(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same in a process that imports everything itself, which takes 10 to 20 s."""
        return standstill.run(self.command(*words), cwd=self.folder, env=self.environment)

    def start_alone(self, *words: str) -> subprocess.Popen[str]:
        """`start` in a process that imports everything itself."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )

    def start(self, *words: str) -> fork_server.Started:
        """run.py with these arguments, in the background as a script's `&` has it: the shell ignores SIGINT for it."""
        return fork_server.start(list(words), folder=self.folder, environment=self.environment, background=True)

    def history(self) -> list[dict[str, Any]]:
        """The rows of the only run in this checkout."""
        files = list((self.folder / "outputs" / "runs").rglob("training_history.jsonl"))
        assert len(files) <= 1, files
        return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []


@cache
def _hub() -> str:
    """Return a cache of the Hub that all checkouts of this process share: one folder, so that one fork server is enough."""
    folder = tempfile.mkdtemp(prefix="hub-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def settings(**values: object) -> list[str]:
    """The words that set these configuration keys."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
