"""`--pipeline train`: train an agent, continue an unfinished run of the same key, or find the finished one."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

from cluster.placement import runs_elsewhere
from commands.agent_runs import Trained, train_by
from commands.data import DataRun
from configs.config import Config
from configs.decisions import mail_decisions
from configs.loading import load_config
from configs.schema import ConfigError, TrainingConfig
from reports.console import say
from steps.artifact_names import MODEL_NAME
from steps.project import MODELS, RUNS, digest_of, training_code
from training.backends import require_effect
from training.backends.base_model import resolve_base_model
from training.errors import BadInput
from training.guard.stopping import require_stop_rules
from training.record.experiment import Experiment, known_runs
from training.scoring.scorer import require_scoring, scoring_sources


class TrainedRun(Trained):
    """A training of the mail agent, with its data."""

    data: DataRun


def require_training(config: Config) -> TrainingConfig:
    """Return the settings of the training.

    Raises `BadInput` if they contradict each other or a key, file or function is missing.
    """
    training = config.for_training()
    here = not runs_elsewhere("train_agent", config.step_settings)
    require_scoring(training, keys=here)
    if here:  # on a cluster the key is a secret of the cluster
        training.require_judge()
    require_stop_rules(training)
    mail_decisions(training)
    require_effect(training)
    if training.backend == "serverless":
        from training.backends import require_backend
        from training.backends.serverless import remote_base_model

        if here:
            require_backend(training)
        remote_base_model(training.base_model)
    return training


def run_train(config: Config, data: DataRun, *, cache: bool, key: str | None = None) -> TrainedRun:
    """Train, resume an unfinished run of the same key, or reuse the finished one. Call `require_training` first.

    `key` names a run to resume whose key the settings may no longer yield, because code or defaults have changed.
    """
    from pipelines.training import training_pipeline

    training = config.for_training()
    if key is None:
        base = base_model_content(training.base_model, here=not runs_elsewhere("train_agent", config.step_settings))
        key = run_key(training, data, base, "" if cache else datetime.now(UTC).isoformat())
        if cache:
            _say_if_begun_otherwise(training, data, base, key)
    arguments = {"database": data.database, "scenarios": data.scenarios}
    trained = train_by(training_pipeline, training, arguments, key, config=config, model=MODEL_NAME, cache=cache)
    return TrainedRun(data=data, **dict(trained))


def base_model_content(base_model: str, *, here: bool) -> str | None:
    """Return the checksum of the base model's files, a part of a run's key.

    `None` unless the training runs `here`: the files of another machine are unknown. There the run refuses to continue
    on other files.
    """
    return resolve_base_model(base_model, MODELS, progress=say).content() if here else None


def run_key(config: TrainingConfig, data: DataRun, base: str | None, nonce: str = "") -> str:
    """Return the key of a training run, equal for the same settings, data versions, code and `base_model_content`.

    It names the model version. It begins with a letter, because ZenML reads a name of digits as a version number.
    """
    parts = [
        config.model_dump(mode="json"),
        data.model_dump(mode="json"),
        scoring_sources(config),
        training_code(),
        base,
        nonce,
    ]
    return f"r{digest_of(parts)[:9]}"


def _say_if_begun_otherwise(training: TrainingConfig, data: DataRun, base: str | None, key: str) -> None:
    """Print the runs that have these settings and data and that the new run nevertheless neither continues nor reuses."""
    versions, code = {str(data.database), str(data.scenarios)}, training_code()
    with contextlib.suppress(BadInput):  # a damaged earlier run must not prevent a new one
        known = [experiment for experiment, _ in known_runs(RUNS)]
        if any(experiment.run == key for experiment in known):
            return
        for experiment in known:
            if set(experiment.data.values()) != versions or not _began_with(experiment, training):
                continue
            if experiment.latest_code not in (None, code):
                why = "other code"
            elif experiment.base_model_content is None:
                why = "a key without the base model"
            elif base not in (None, experiment.base_model_content):
                why = "other files of the base model"
            else:
                continue  # of --no-cache
            continued = "; its checkpoint stays: --pipeline eval --checkpoint, or --from"
            if experiment.stopped is None:
                continued = f". To continue the old one: --pipeline train --resume {experiment.run}"
                continued += " --new-code" if why == "other code" else ""
            state = "finished" if experiment.stopped else "unfinished"
            say(
                f"run {experiment.run} of {experiment.created:%Y-%m-%d %H:%M} has these settings, is {state} and began with {why}: "
                f"this is a new run{continued}"
            )


def _began_with(experiment: Experiment, training: TrainingConfig) -> bool:
    """Return whether the run began with these settings. Those that are newer than the run had their defaults."""
    try:
        return load_config(None, [], base=experiment.config).for_training() == training
    except ConfigError:  # a setting that is no longer there, or a value that is no longer allowed
        return False
