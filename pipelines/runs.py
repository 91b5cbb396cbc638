"""Running the pipelines in order: what each needs, what each left, and what the user is told about it.

Pipelines are imported where they run: art, transformers and PEFT take eight seconds, for which neither the preparation of data nor a
word about bad input has to wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ValidationError
from zenml import Model, save_artifact
from zenml.client import Client
from zenml.config.schedule import Schedule
from zenml.models import ModelVersionResponse, PipelineRunResponse
from zenml.orchestrators.exceptions import PipelineSubmissionError

from cluster.placement import runs_elsewhere
from configs.schema import Config, DataConfig, EvaluationConfig, QuestionConfig, TrainingConfig, section
from environment.errors import BadInput as BadMail
from environment.question_table import write_question_table
from materializers.checkpoint import CheckpointMaterializer
from pipelines.running import run_pipeline
from reports.console import console, say
from reports.page import write_text
from reports.tables import closing_table, gain
from steps.artifact_names import (
    CHECKPOINT,
    MAIL_DATABASE,
    MAIL_REPORT,
    METRICS,
    MODEL_NAME,
    QUESTIONS,
    REPORT,
    SCENARIOS,
    TRAINING_CURVE,
    WARM_START,
)
from steps.data.sources import current_source_version, prepared_version, source_version
from steps.model_registry import find_checkpoint, production_version
from steps.project import OUTPUTS, ROOT, RUNS, training_code
from training.backends import require_effect
from training.errors import BadInput
from training.experiment import known_runs
from training.scoring import require_scoring, scoring_sources
from training.stopping import require_stop_rules


class DataRun(BaseModel):
    """Artifact versions of a data preparation run."""

    database: UUID
    scenarios: UUID


class TrainedRun(BaseModel):
    """Artifact versions of a training run, and the model version that they belong to."""

    version: str
    data: DataRun
    checkpoint: UUID
    warm_start: UUID | None


def _output(run: PipelineRunResponse, step: str, name: str) -> Any:
    return run.steps[step].outputs[name][0]


def _say_if_cached(run: PipelineRunResponse, what: str) -> None:
    if all(step.status.value == "cached" for step in run.steps.values()):
        say(f"{what}: unchanged, reused (--no-cache runs it again)")


def run_data(config: Config, *, cache: bool) -> DataRun:
    """Prepares mails and questions, again when their source has changed."""
    from pipelines.data_preparation import data_preparation_pipeline

    data = section(config, DataConfig)
    run = run_pipeline(
        data_preparation_pipeline,
        {"config": data, "source_version": _version_of_source(data)},
        enable_cache=cache,
        settings=config.settings,
    )
    database = _output(run, "create_database", MAIL_DATABASE)
    scenarios = _output(run, "load_scenarios", SCENARIOS)
    _say_if_cached(run, "data")
    kept, counts = database.run_metadata, scenarios.run_metadata
    say(
        f"data: {kept['kept']:,} mails in {kept['inboxes']:,} inboxes (of {kept['read']:,} read), "
        f"{counts['train']} questions to train on, {counts['test']} held out"
    )
    if any(counts["unlabelled"].values()):
        unlabelled = counts["unlabelled"]
        say(f"  of these without a reference answer: {unlabelled['train']} to train on, {unlabelled['test']} held out")
    for what, dropped in (("mails", kept["dropped"]), ("questions", counts["dropped"])):
        if dropped:
            say(f"  {what} left out: " + ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()))
    if kept["dropped"]:
        page = _output(run, "create_database", MAIL_REPORT).load()
        report = write_text(OUTPUTS / "reports" / f"mails-{str(database.id)[:8]}.html", page)
        say(f"  which mails and why: {os.path.relpath(report)}")
    return DataRun(database=database.id, scenarios=scenarios.id)


def _version_of_source(data: DataConfig) -> str:
    """The state of the source now. When the Hub does not tell, that of the data prepared last from the same settings, if any."""
    try:
        return current_source_version(data)
    except BadMail as error:
        if prepared := prepared_version(data):
            say(f"{error}; the data that were prepared before are used")
            return prepared
        return source_version(data)  # whoever reads the source says what is wrong with it


def run_scenarios(config: Config, *, cache: bool) -> None:
    """Has questions written about mail that has none, and says where they are and how to train with them."""
    from pipelines.question_writing import question_writing_pipeline
    from steps.data.write_questions import require_model

    questions, data = section(config, QuestionConfig), section(config, DataConfig)
    require_model(questions)
    run = run_pipeline(
        question_writing_pipeline,
        {
            "config": questions,
            "data": data,
            "source_version": _version_of_source(data),
            "read_chars": config.read_chars,
            "fresh": "" if cache else datetime.now(UTC).isoformat(),
        },
        enable_cache=cache,
        settings=config.settings,
    )
    _say_if_cached(run, "questions")
    written = _output(run, "write_questions", QUESTIONS)
    rows, facts = written.load(), written.run_metadata
    # Named after its content: data that was prepared from a folder stays as it is when the folder is written again.
    name = hashlib.sha256("".join(row.model_dump_json() for row in rows).encode()).hexdigest()[:10]
    folder = OUTPUTS / "questions" / name
    if not folder.is_dir():
        write_question_table(rows, folder)
    say(
        f"questions: {len(rows):,} (inboxes: {facts['inboxes']:,}, batches of mails: {facts['batches']:,}, {facts['spent']})"
    )
    if facts["rejected"]:
        say("  questions left out: " + ", ".join(f"{count:,} {reason}" for reason, count in facts["rejected"].items()))
    if facts["unusable"]:
        say(f"  batches without a usable reply: {facts['unusable']:,}")
    if facts["stopped"] != "enough":
        why = f"max_cost={questions.max_cost}" if facts["stopped"] == "max_cost" else "there are no further mails"
        say(f"  fewer than were wanted: {why}")
    shown = os.path.relpath(folder)
    say(f"written to {shown}")
    sources = shlex.join(["--set", f"emails={data.emails}", "--set", f"train_questions={shown}"])
    say(f"train with them: python run.py --pipeline all --config configs/enron_local.yaml {sources}")


def run_key(config: TrainingConfig, data: DataRun, nonce: str = "") -> str:
    """What identifies a training run: the same settings, data versions and code are the same run, finished or not.

    It names the model version, and ZenML takes a name of digits only for the number of an existing version: hence the letter.
    """
    parts = [config.model_dump(mode="json"), data.model_dump(mode="json"), scoring_sources(config), training_code(), nonce]
    identity = json.dumps(parts, sort_keys=True)
    return f"r{hashlib.sha256(identity.encode()).hexdigest()[:9]}"


def require_training(config: Config) -> TrainingConfig:
    """The training's settings. Raises `BadInput` when they contradict each other or lack a key, a file or a function."""
    training = section(config, TrainingConfig)
    here = not runs_elsewhere("train_agent", config.step_settings)
    require_scoring(training, keys=here)
    if here:  # elsewhere the key is a secret of the cluster
        training.require_judge()
    require_stop_rules(training)
    require_effect(training)
    if training.backend == "serverless":
        from training.backends import require_backend
        from training.backends.serverless import remote_base_model

        if here:
            require_backend(training)
        remote_base_model(training.base_model)
    return training


def require_baseline(config: Config) -> None:
    """Raises BadInput when this machine is the one that asks `baseline_model` and cannot: before a training is spent."""
    from steps.evaluation.prompted import prompted_model

    prompted = prompted_model(section(config, EvaluationConfig), section(config, TrainingConfig))
    if prompted and not runs_elsewhere("run_inference", config.step_settings):
        prompted.require_ready("baseline_model")


def run_train(config: Config, data: DataRun, *, cache: bool, key: str | None = None) -> TrainedRun:
    """Trains, or goes on with an unfinished run of the same key, or finds the finished one.

    `key` is that of a run which is resumed: with its code or its settings' defaults the key of the same settings changes.
    `require_training` comes first.
    """
    from pipelines.training import training_pipeline

    training = section(config, TrainingConfig)
    if key is None:
        key = run_key(training, data, "" if cache else datetime.now(UTC).isoformat())
        if cache:
            _say_if_unfinished_with_other_code(training, data)
    say(f"training run {key} ({training.base_model}, backend {training.backend}, {training.scoring} reward)")
    arguments = {"config": training, "run_key": key, "database": data.database, "scenarios": data.scenarios}
    run = run_pipeline(
        training_pipeline,
        arguments,
        enable_cache=cache,
        model=Model(name=MODEL_NAME, version=key),
        settings=config.settings,
        steps={name: step for name, step in config.step_settings.items() if name == "train_agent"},
    )
    if run.steps["train_agent"].status.value == "cached":
        say("training: this run is finished, reused (--no-cache starts a new one)")
    page = _output(run, "train_agent", TRAINING_CURVE).load()
    report = write_text(OUTPUTS / "reports" / f"training-{key}.html", page)
    say(f"training report: {os.path.relpath(report)}")
    return TrainedRun(
        version=key,
        data=data,
        checkpoint=_output(run, "train_agent", CHECKPOINT).id,
        warm_start=_output(run, "train_agent", WARM_START).id,
    )


def _say_if_unfinished_with_other_code(training: TrainingConfig, data: DataRun) -> None:
    """Name the runs of these settings and data that were cut off before the code changed: the new run does not continue them."""
    config, versions, code = training.model_dump(mode="json"), {str(data.database), str(data.scenarios)}, training_code()
    with contextlib.suppress(BadInput):  # another run's damage is no reason not to begin this one
        for experiment, _ in known_runs(RUNS):
            same = experiment.config == config and set(experiment.data.values()) == versions
            if same and experiment.stopped is None and experiment.latest_code not in (None, code):
                say(
                    f"run {experiment.run} of {experiment.created:%Y-%m-%d %H:%M} has these settings, is unfinished and began with other "
                    f"code: this is a new run. To go on with the old one: --pipeline train --resume {experiment.run} --new-code"
                )


def schedule_retraining(config: Config, cron: str) -> None:
    """Has the orchestrator refresh the data, train, evaluate and promote at the times that `cron` means; nothing runs now.

    Every run makes a model version of its own.

    Raises:
        BadInput: the same retraining is scheduled already, the cluster refuses, or a source is on this machine only.
    """
    from cluster import schedules
    from pipelines.retraining import retraining_pipeline

    parts = {
        "data": section(config, DataConfig),
        "training": require_training(config),
        "evaluation": section(config, EvaluationConfig),
    }
    identity = json.dumps({name: part.model_dump(mode="json") for name, part in parts.items()}, sort_keys=True)
    name = f"retrain-{hashlib.sha256(identity.encode()).hexdigest()[:9]}"
    schedules.require_unscheduled(name)
    scheduled = retraining_pipeline.with_options(
        model=Model(name=MODEL_NAME),
        settings=config.settings,
        steps=config.step_settings,
        schedule=Schedule(name=name, cron_expression=cron),
    )
    try:
        scheduled(**parts)
    except BaseException as error:  # ZenML notes a schedule before the cluster has taken it
        schedules.forget(name)
        if isinstance(error, PipelineSubmissionError):
            raise BadInput(f"--schedule: {error}") from None
        raise
    say(f'scheduled: {name} "{cron}" (--schedule-list, --schedule-pause, --schedule-resume, --schedule-delete)')


def find_trained(explicit: dict[str, Any], checkpoint: str | None) -> TrainedRun | None:
    """What `eval` evaluates: the named checkpoint, else the newest trained model, unless the user set anything that a
    training run depends on: then `None`, and the run of those settings is found (or made) instead.

    Raises:
        BadInput: the named checkpoint is not there or incomplete.
    """
    if checkpoint is not None:
        return _named_checkpoint(checkpoint)
    of_training = {*DataConfig.model_fields, *TrainingConfig.model_fields} - EvaluationConfig.model_fields.keys()
    if set(explicit) & of_training:
        return None
    try:
        versions = Client().list_model_versions(model=MODEL_NAME, sort_by="desc:created", size=50, hydrate=True)
    except KeyError:
        return None  # no model yet
    return next((found for version in versions.items if (found := trained_run_of(version))), None)


def _named_checkpoint(reference: str) -> TrainedRun:
    stored = find_checkpoint(reference)
    manifest = stored.checkpoint.manifest
    data = data_in_store(manifest.data, f"--checkpoint {reference}")
    if Path(reference).is_dir():
        artifact = save_artifact(stored.checkpoint, name=CHECKPOINT, materializer=CheckpointMaterializer).id
    else:
        artifact = UUID(stored.reference)
    return TrainedRun(version=manifest.name, data=data, checkpoint=artifact, warm_start=None)


def data_in_store(trained_on: dict[str, str], asked: str) -> DataRun:
    """The data of a checkpoint or run. Raises BadInput, which begins with what was `asked`, when the store has it no more."""
    try:
        data = DataRun(database=UUID(trained_on[MAIL_DATABASE]), scenarios=UUID(trained_on[SCENARIOS]))
        Client().get_artifact_version(data.database)
        Client().get_artifact_version(data.scenarios)
    except KeyError:
        raise BadInput(f"{asked}: the data that it was trained on is not in this ZenML store") from None
    return data


def trained_run_of(version: ModelVersionResponse) -> TrainedRun | None:
    """What a model version's training left, `None` when it is unfinished."""
    checkpoint, warm_start = version.get_artifact(CHECKPOINT), version.get_artifact(WARM_START)
    if checkpoint is None or warm_start is None:
        return None
    inputs = checkpoint.step.inputs
    return TrainedRun(
        version=version.name,
        data=DataRun(database=inputs["database"][0].id, scenarios=inputs["scenarios"][0].id),
        checkpoint=checkpoint.id,
        warm_start=warm_start.id,
    )


def run_eval(
    config: Config, trained: TrainedRun, *, cache: bool, summary: Path | None, base_model: str | None = None
) -> None:
    """Evaluates a training run and prints the closing table. `base_model` insists on that base instead of the checkpoint's.

    Raises:
        BadInput: the judge cannot be asked.
    """
    from pipelines.evaluation import evaluation_pipeline

    if not Client().active_stack.orchestrator.config.is_remote:
        section(config, EvaluationConfig).require_judge()

    run = run_pipeline(
        evaluation_pipeline,
        {
            "config": section(config, EvaluationConfig),
            "database": trained.data.database,
            "scenarios": trained.data.scenarios,
            "checkpoint": trained.checkpoint,
            "warm_start": trained.warm_start,
            "base_model": base_model,
            "production": _other_in_production(trained),
        },
        enable_cache=cache,
        model=Model(name=MODEL_NAME, version=trained.version),
        settings=config.settings,
        steps={name: step for name, step in config.step_settings.items() if name != "train_agent"},
    )
    if run.steps["run_inference"].status.value == "cached":
        say("evaluation: unchanged, answers reused (--no-cache asks again)")
    metrics = _output(run, "compute_metrics", METRICS).load()
    report = write_text(OUTPUTS / "reports" / f"{trained.version}.html", _output(run, "compute_metrics", REPORT).load())
    if summary is not None:
        write_text(summary, json.dumps(metrics, indent=2) + "\n")
    say("")
    console.print(closing_table(metrics))
    if added := gain(metrics):
        say(added)
    if Client().active_stack.orchestrator.config.is_remote:
        promotion = metrics["promotion"]  # elsewhere the gate has said it on this terminal when it decided
        say(f"{trained.version} {'promoted' if promotion['promoted'] else 'not promoted'} to production: {promotion['reason']}")
    say(f"report: {os.path.relpath(report)}")
    say(f"run {run.name} in the dashboard: zenml login --local, then open pipeline runs (id {run.id})")


def _other_in_production(trained: TrainedRun) -> str | None:
    """Id of the checkpoint of the version in production, `None` when it is the evaluated one or there is none."""
    version = production_version()
    if version is None or version.name == trained.version:
        return None
    checkpoint = version.get_artifact(CHECKPOINT)
    assert checkpoint is not None, "the version in production has a checkpoint"
    return str(checkpoint.id)


def run_deploy(
    config: Config, name: str, *, checkpoint: str | None, unpromoted: bool = False, base_model: str | None
) -> None:
    """Deploys the trained agent and says how to ask it."""
    from pipelines.deployment import deploy_inference
    from serving.key_file import read_keys
    from serving.settings import ServingSettings

    try:
        serving = ServingSettings(
            keys=read_keys(Path(config.access_keys).expanduser()) if config.access_keys else (),
            allowed_hosts=config.allowed_hosts,
            timeout=config.question_timeout,
            max_waiting=config.max_waiting,
            feedback_folder=(ROOT / config.feedback_folder).resolve(),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None
    url = deploy_inference(
        name,
        checkpoint=checkpoint,
        unpromoted=unpromoted,
        base_model=base_model,
        port=config.port,
        address=config.address,
        serving=serving,
        settings=config.settings,
    )
    say(f"{name} answers at {url}/invoke (page: {url}/)")
    say(f"zenml deployment describe|logs|deprovision {name}")
