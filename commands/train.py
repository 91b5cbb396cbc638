"""`--pipeline train`: train an agent, continue an unfinished run of the same key, or find the finished one."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from uuid import UUID

from pydantic import BaseModel
from zenml import Model

from cluster.placement import TRAINING_STEPS, runs_elsewhere
from commands.data import DataRun
from commands.pipeline_run import output, run_pipeline
from configs.config import Config
from configs.decisions import mail_decisions
from configs.loading import load_config
from configs.schema import ConfigError, TrainingConfig
from reports.console import say
from steps.artifact_names import CHECKPOINT, MODEL_NAME, TRAINING_CURVE, WARM_START
from steps.project import MODELS, OUTPUTS, RUNS, digest_of, training_code
from training.backends import require_effect
from training.backends.base_model import resolve_base_model
from training.errors import BadInput
from training.experiment import Experiment, known_runs
from training.files import write_text
from training.scoring import require_scoring, scoring_sources
from training.stopping import require_stop_rules


class TrainedRun(BaseModel):
    """Artifact versions of a training run, and their model version."""

    version: str
    data: DataRun
    checkpoint: UUID
    warm_start: UUID | None


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
    say(f"training run {key} ({training.base_model}, backend {training.backend}, {training.scoring} reward)")
    arguments = {"config": training, "run_key": key, "database": data.database, "scenarios": data.scenarios}
    run = run_pipeline(
        training_pipeline,
        arguments,
        enable_cache=cache,
        model=Model(name=MODEL_NAME, version=key),
        settings=config.settings,
        steps={name: step for name, step in config.step_settings.items() if name in TRAINING_STEPS},
    )
    if run.steps["train_agent"].status.value == "cached":
        say("training: this run is finished, reused (--no-cache starts a new one)")
    page = output(run, "train_agent", TRAINING_CURVE).load()
    report = write_text(OUTPUTS / "reports" / f"training-{key}.html", page)
    say(f"training report: {os.path.relpath(report)}")
    return TrainedRun(
        version=key,
        data=data,
        checkpoint=output(run, "train_agent", CHECKPOINT).id,
        warm_start=output(run, "train_agent", WARM_START).id,
    )


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
