"""A copy of the project in which tests run `run.py`, with its own data, runs and ZenML configuration."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import standstill

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

SMALL_COMPANY = [
    word
    for setting in (
        "synthetic_train_inboxes=1",
        "synthetic_test_inboxes=1",
        "synthetic_mails_per_inbox=70",
        "synthetic_questions_per_inbox=24",
    )
    for word in ("--set", setting)
]
"""`run.py` with a company of two mailboxes."""


@dataclass
class Checkout:
    folder: Path
    environment: dict[str, str]

    @classmethod
    def create(cls, folder: Path) -> Checkout:
        for room in ROOMS:
            shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "run.py", folder)
        (ROOT / "models").mkdir(exist_ok=True)
        (folder / "models").symlink_to(ROOT / "models")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ZENML_")}
        return cls(folder, environment | {"ZENML_CONFIG_PATH": str(folder / "zenml"), "COLUMNS": "120"})

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "run.py", *words]

    def run(self, *words: str, idle_seconds: float = standstill.IDLE_SECONDS) -> subprocess.CompletedProcess[str]:
        """run.py with these arguments, to its end."""
        return standstill.run(self.command(*words), cwd=self.folder, env=self.environment, idle_seconds=idle_seconds)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """run.py with these arguments, in the background as a script's `&` has it: the shell ignores SIGINT for it."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )

    def history(self) -> list[dict[str, Any]]:
        """The rows of the only run in this checkout."""
        files = list((self.folder / "outputs" / "runs").rglob("training_history.jsonl"))
        assert len(files) <= 1, files
        return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []


def settings(**values: object) -> list[str]:
    """The words that set these configuration keys."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
