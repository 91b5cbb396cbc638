"""Tasks for the trainer, besides searching mail. Each is a plug-in that imports `training` only."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from training.errors import BadInput
from training.plugin import TaskPlugin


def load_plugin(task: str) -> TaskPlugin:
    """Return the plug-in of a task: of its folder here, or at `package.module:NAME`. Raises BadInput if there is none."""
    module, _, name = task.partition(":") if ":" in task else (f"tasks.{task}.plugin", "", "PLUGIN")
    try:
        plugin = getattr(import_module(module), name, None)
    except Exception as error:  # a module of the user may raise anything on import
        raise BadInput(f"task={task}: {module} cannot be imported ({type(error).__name__}: {error})") from error
    if not isinstance(plugin, TaskPlugin):
        raise BadInput(f"task={task}: {module} has no {name} that is a training.plugin.TaskPlugin")
    return plugin


def recorded_settings(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the description of a run says of its task, under the keys of a configuration."""
    return {"task": task, **({"task_settings": settings} if ":" in task else settings)}
