"""Prompts and rubrics are text files in this folder; `load` reads one."""

from functools import cache
from importlib import resources


@cache
def load(name: str) -> str:
    """Return the text of `agent/prompts/{name}.txt` without surrounding blank lines."""
    return resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8").strip()
