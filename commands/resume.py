"""`--resume NAME`: find a run with its original settings and data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenml.client import Client

from commands.data import DataRun, data_in_store
from configs.config import Config, is_setting
from configs.gone import fixed_otherwise, without_gone
from configs.loading import explicit_values, load_config
from reports.console import say
from steps.data.sources import settings_of_step
from steps.project import MODELS, RUNS, task_code, training_code
from steps.training.published_run import experiments_elsewhere
from tasks import load_plugin, recorded_settings
from training.backends.base_model import resolve_base_model
from training.errors import BadInput
from training.plugin import TaskPlugin
from training.record.experiment import Experiment, find_runs, known_runs
from training.scoring.scorer import scoring_sources

_MOST_SHOWN = 60
"""Characters of a value in a message, because prompts are long."""


@dataclass(frozen=True)
class Resumable:
    """A run that can be resumed, with its settings and data."""

    experiment: Experiment
    folder: Path | None
    """Its folder on this machine; `None` if it is in the artifact store only."""
    config: Config
    data: DataRun | None
    """Its mails and questions; `None` for a task other than email-search, whose settings name its data."""

    def require_same_base(self) -> None:
        """Raise BadInput if the base model on this machine has changed, because the run would be another one."""
        if self.folder is None:
            return  # the weights are on another machine
        files = resolve_base_model(self.experiment.config["base_model"], MODELS, progress=say)
        if not self.experiment.began_on(files.checksum, files.content()):
            differing = (
                "weights"
                if files.checksum != self.experiment.base_model_checksum
                else "tokenizer, template or configuration"
            )
            raise BadInput(
                f"run {self.experiment.run} began on other files of {files.id} ({differing}): restore those, or start a new run: "
                f"{_new_run(self.experiment, {})}"
            )


def find_resumable(name: str, file: Path | None, overrides: list[str], *, new_code: bool = False) -> Resumable:
    """Find the run by the name of its experiment or by its key. Its settings need not be repeated.

    Raises:
        BadInput: there is no such run or several, its data are gone, `file` or `overrides` change a setting of its
            training or data, or the code has changed and `new_code` is false.
        ConfigError: a setting cannot be used.
    """
    [(experiment, folder)] = find_runs(all_runs(), [name])
    plugin = None if experiment.task == "email-search" else load_plugin(experiment.task)
    data = data_in_store(experiment.data, f"--resume {name}") if plugin is None else None
    recorded = without_gone(_data_settings(data) | experiment.config if data else experiment.config)
    known = {key: value for key, value in recorded.items() if is_setting(key)}
    config = load_config(file, overrides, base=known)
    # Settings, and parts of settings, that are newer than the run had their defaults.
    began_with, now_with = _settings(load_config(None, [], base=known), plugin), _settings(config, plugin)
    changes = [f"{key} {_shown(recorded[key])} -> no setting any more" for key in recorded.keys() - now_with.keys()]
    changes += [
        f"{key} {_shown(value)} -> {_shown(now_with[key])}"
        for key, value in began_with.items()
        if now_with[key] != value
    ]
    if not changes:
        sources = scoring_sources(config.for_training())
        sources |= plugin.sources(config.for_task(plugin.settings)) if plugin else {}
        for key in sorted({*sources, *experiment.sources}):
            if sources.get(key) != experiment.sources.get(key):
                changes.append(f"what {key}={now_with[key]} names has another content")
    if changes:
        raise BadInput(
            f"--resume {name}: run {experiment.run} began with other settings: {', '.join(changes)}: resume it without the "
            f"change, or start a new run with it: {_new_run(experiment, explicit_values(file, overrides))}"
        )
    code = training_code() if plugin is None else task_code(plugin)
    if not new_code and experiment.latest_code not in (None, code):
        began = f"run {experiment.run} began with other code (commit {(experiment.git_revision or 'unknown')[:12]})"
        raise BadInput(
            f"--resume {name}: {began}: add --new-code to continue with today's code (its history then mixes both), or start a new "
            f"run: {_new_run(experiment, explicit_values(file, overrides))}"
        )
    if differing := fixed_otherwise(experiment.config):
        say(f"run {experiment.run} goes on with values that are fixed now: {', '.join(differing)}")
    return Resumable(experiment, folder, config, data)


def all_runs() -> list[tuple[Experiment, Path | None]]:
    """Return the runs of this checkout, and those that only a remote artifact store has."""
    known: list[tuple[Experiment, Path | None]] = list(known_runs(RUNS))
    here = {experiment.run for experiment, _ in known}
    known += [(experiment, None) for experiment in experiments_elsewhere() if experiment.run not in here]
    return known


def _data_settings(data: DataRun) -> dict[str, Any]:
    """Return the settings with which the mails and questions of a run were prepared."""
    return settings_of_step(Client().get_artifact_version(data.database))


def _settings(config: Config, plugin: TaskPlugin | None) -> dict[str, Any]:
    """Return the settings of the training, and of the data or the task."""
    training = config.for_training().model_dump(mode="json")
    if plugin is None:
        return config.data.model_dump(mode="json") | training | {"task": config.task}
    chosen = config.for_task(plugin.settings).model_dump(mode="json")
    return training | recorded_settings(config.task, chosen)


def _new_run(experiment: Experiment, explicit: dict[str, Any]) -> str:
    """Suggest options that start a new run: the user's name for it if it is free, else a new one."""
    taken = {known.name for known, _ in all_runs()}
    chosen = explicit.get("trainer", {}).get("experiment")
    free = (f"{experiment.name}-{number}" for number in range(2, len(taken) + 3))
    fresh = chosen if chosen and chosen not in taken else next(name for name in free if name not in taken)
    return f"--set experiment={fresh} instead of --resume"


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
