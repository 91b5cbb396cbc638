"""Prompts as text files."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def load(name: str) -> str:
    """Return the text of `name`.txt, without the line break at its end."""
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")
