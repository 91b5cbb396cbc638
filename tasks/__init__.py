"""Tasks for the trainer, besides searching mail. Each is a plug-in that imports `training` only."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import ValidationError

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
    if missing := [part for part in ("name", "title", "settings") if not hasattr(plugin, part)]:
        raise BadInput(f"task={task}: {name} in {module} has no {missing[0]}, which reports and model versions need")
    return plugin


def answering_plugin(task: str) -> TaskPlugin:
    """Return the plug-in of a task that users can ask. Raises BadInput if they cannot, or there is no such task."""
    plugin = load_plugin(task)
    if type(plugin).scenario_of is TaskPlugin.scenario_of:
        raise BadInput(
            f"task {plugin.name} answers no questions of users: measure it with --pipeline eval, or export it"
        )
    return plugin


def trained_settings(task: str, trained_with: Mapping[str, Any]) -> Any:
    """Return the task's settings out of those of a training. Raises BadInput if they are not valid any more."""
    kind = load_plugin(task).settings
    own = {name: trained_with[name] for name in kind.model_fields if name in trained_with}
    try:
        return kind.model_validate(trained_with["task_settings"] if ":" in task else own)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"checkpoint: its task's settings cannot be used: {first['loc'][0]}: {first['msg']}") from None


def recorded_settings(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the description of a run says of its task, under the keys of a configuration."""
    return {"task": task, **({"task_settings": settings} if ":" in task else settings)}
