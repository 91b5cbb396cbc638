"""Tasks for the trainer, besides searching mail. Each is a plug-in that imports `training` only."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.plugin import TaskPlugin


def load_plugin(name: str) -> TaskPlugin:
    """Return the plug-in of a task, which its folder holds as `PLUGIN`."""
    plugin: TaskPlugin = import_module(f"tasks.{name}.plugin").PLUGIN
    return plugin
