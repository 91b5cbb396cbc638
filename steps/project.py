"""Where this checkout keeps what it makes, and which of its files a cached result depends on."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
DATA = ROOT / "data"
OUTPUTS = ROOT / "outputs"
RUNS = OUTPUTS / "runs"
LEARN_LOOPS = OUTPUTS / "learn_loop"
QUESTION_REPLIES = OUTPUTS / "question_replies"


def code_of(*rooms: str) -> list[str]:
    """Source files of the rooms, relative to the checkout: what a cache policy has to watch beside the step's own code."""
    return [
        str(file.relative_to(ROOT))
        for room in rooms
        for file in sorted((ROOT / room).rglob("*"))
        if file.suffix in (".py", ".sql", ".txt", ".toml", ".jinja", ".yaml", ".json", ".md")
    ]


def training_code() -> str:
    """Return the SHA-256 of the code that decides what a training run does: the same run means the same code."""
    digest = hashlib.sha256()
    for name in code_of("agent", "environment", "steps/training", "training"):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()


def git_revision() -> str | None:
    """Commit of this checkout, with `+changes` when tracked files differ from it; `None` outside a repository."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
