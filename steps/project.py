"""Folders of this project, and the source files that cached results depend on."""

from __future__ import annotations

import hashlib
import inspect
import json
import subprocess
import sys
from typing import Any

from environment.home import CODE, HOME
from training.plugin import TaskPlugin

ROOT = CODE
MODELS = HOME / "models"
DATA = HOME / "data"
OUTPUTS = HOME / "outputs"
RUNS = OUTPUTS / "runs"
LEARN_LOOPS = OUTPUTS / "learn_loop"
EVALUATIONS = OUTPUTS / "evaluations"
QUESTION_REPLIES = OUTPUTS / "question_replies"
_SOURCES = frozenset({".css", ".html", ".jinja", ".js", ".json", ".md", ".py", ".sql", ".toml", ".txt", ".yaml"})


def source_files(*rooms: str) -> list[str]:
    """Return the source files of `rooms`, relative to the checkout, for the cache policy of a step."""
    return [
        str(file.relative_to(ROOT))
        for room in rooms
        for file in sorted((ROOT / room).rglob("*"))
        if file.suffix in _SOURCES
    ]


def code_digest(*rooms: str) -> str:
    """Return the SHA-256 of the source files of `rooms`, with their names."""
    digest = hashlib.sha256()
    for name in source_files(*rooms):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()


def digest_of(parts: Any) -> str:
    """Return the SHA-256 of what can be written as JSON, for the key of a run."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def training_code() -> str:
    """Return the digest of the code that a training run of the e-mail agent depends on, a part of its key."""
    return code_digest("agent", "environment", "steps/training", "training")


def task_code(plugin: TaskPlugin) -> str:
    """Return the digest of the code that a training run of a task depends on, a part of its key."""
    own = inspect.getsource(sys.modules[type(plugin).__module__])
    return hashlib.sha256(
        (own + code_digest(*sorted((*plugin.code, "steps/training", "training")))).encode()
    ).hexdigest()


def learn_loop_code() -> str:
    """Return the digest of the code that a learn loop depends on, a part of its key."""
    return code_digest("steps/learn_loop", "steps/training", "tasks/outreach", "training")


def git_revision() -> str | None:
    """Return the commit of this checkout, with `+changes` if tracked files differ; `None` outside a repository."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
