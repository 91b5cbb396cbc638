"""Prompts as text files."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def load(name: str) -> str:
    """Return the prompt `name`, without the line break at its end."""
    return (
        resources.files("tasks.outreach.prompts").joinpath(f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
    )
