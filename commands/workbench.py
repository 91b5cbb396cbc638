"""`task: workbench`: train the office agent, and evaluate it beside the published models of the benchmark."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from zenml import Model, save_artifact

from cluster.zenml_settings import require_zenml_settings
from commands.closing_table import print_closing_table
from commands.dry_run import plan_lines
from commands.pipeline_run import run_pipeline
from commands.train import base_model_content
from configs.schema import Config, EvaluationConfig, TrainingConfig, WorkbenchConfig, section
from materializers.checkpoint import CheckpointMaterializer
from pipelines.workbench import workbench_evaluation_pipeline, workbench_training_pipeline
from reports.console import say
from steps.artifact_names import CHECKPOINT, TRAINING_CURVE, WARM_START
from steps.model_registry import find_checkpoint
from steps.project import MODELS, OUTPUTS, RUNS, workbench_code
from tasks.workbench.scenarios import WorkbenchSettings, load_office
from tasks.workbench.task import WorkbenchTask
from training.decisions import compared_decisions
from training.errors import BadInput
from training.files import write_text
from training.plan import earlier_pace, plan_run
from training.preflight import check_run
from training.scoring import require_scoring, scoring_sources
from training.stopping import hold_out, require_stop_rules

_OF_EMAIL = ("judge", "eval_samples", "base_examples", "base_grammar", "continue_from", "step_settings")
_MODEL = "office-agent"
_DECISIONS = (WorkbenchTask.decisions, WorkbenchTask.usual_decisions, WorkbenchTask.name)


def run_task(
    config: Config,
    pipeline_name: str,
    *,
    dry_run: bool,
    cache: bool,
    summary: Path | None,
    schedule: str | None = None,
    checkpoint: str | None = None,
) -> None:
    """Train, or train and evaluate. With `checkpoint`, evaluate that one without training.

    Raises:
        BadInput: the pipeline or an option has no variant of this task, or a setting or the folder cannot be used.
    """
    if pipeline_name not in ("train", "eval", "all"):
        raise BadInput(f"--pipeline {pipeline_name} has no variant for task=workbench: it is for train, eval and all")
    if schedule is not None or (checkpoint is not None and pipeline_name != "eval"):
        raise BadInput("--schedule, and --checkpoint without --pipeline eval: not for task=workbench; leave it out")
    if unused := [
        name
        for name in _OF_EMAIL
        if getattr(config, name) != Config.model_fields[name].get_default(call_default_factory=True)
    ]:
        raise BadInput(f"{' and '.join(unused)}: no effect on task=workbench; leave it out")
    require_zenml_settings(config.settings, config.step_settings)
    training, office = section(config, TrainingConfig), section(config, WorkbenchConfig)
    content = _require_office(office, training if checkpoint is None else None)
    if dry_run:
        _plan(training, compared_decisions(training, *_DECISIONS))
        return
    if checkpoint is not None:
        stored = find_checkpoint(checkpoint)
        artifact = save_artifact(stored.checkpoint, name=CHECKPOINT, materializer=CheckpointMaterializer)
        found: tuple[str, UUID, UUID | None] = (stored.checkpoint.manifest.name, artifact.id, None)
    else:
        require_scoring(training)
        require_stop_rules(training)
        found = _train(config, training, content, cache=cache)
    if pipeline_name != "train":
        _evaluate(config, content, *found, cache=cache, summary=summary)


def _require_office(office: WorkbenchSettings, training: TrainingConfig | None) -> str:
    """Return the digest of code and data. Raises BadInput if they cannot be used, or do not suffice for a training."""
    tables, scenarios = load_office(office)
    train = [scenario for scenario in scenarios if scenario.split == "train"]
    if training is not None:
        compared_decisions(training, *_DECISIONS)
        if not train:
            raise BadInput(
                f"held_out_templates={office.held_out_templates:g} leaves no template to train on: set it lower"
            )
        if training.validates:
            hold_out(train, training.validation_questions)
    say(f"{len(train)} tasks to train on, {len(scenarios) - len(train)} held out (no template is in both)")
    data = [scenario.model_dump_json().encode() for scenario in scenarios]
    data += [file.read_bytes() for file in sorted(tables.folder.glob("published/*.csv"))]
    return hashlib.sha256(b"".join([tables.image, workbench_code().encode(), *data])).hexdigest()


def _plan(training: TrainingConfig, decisions: tuple[str, ...]) -> None:
    """Print checks and plan. Raises BadInput when a check fails."""
    failed = []
    for check in check_run(training, training.base_model, models=MODELS, runs=RUNS):
        say(str(check))
        failed += [] if check.ok else [check.found]
    if failed:
        raise BadInput(failed[0])
    pace = earlier_pace(RUNS, training.base_model, training.backend, decisions=bool(decisions))
    turns, tokens = training.max_turns, training.max_tokens
    for line in plan_lines(plan_run(training, max_turns=turns, max_tokens=tokens, pace=pace, decisions=decisions)):
        say(line)
    say("nothing was trained (--dry-run)")


def _train(config: Config, training: TrainingConfig, content: str, *, cache: bool) -> tuple[str, UUID, UUID]:
    """Return model version, checkpoint and warm start of the training. Reuses a finished one."""
    parts: list[Any] = [training.model_dump(mode="json"), content, scoring_sources(training)]
    parts += [base_model_content(training.base_model, here=True), "" if cache else datetime.now(UTC).isoformat()]
    key = f"w{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:9]}"
    say(f"training run {key} ({training.base_model}, backend {training.backend})")
    run = run_pipeline(
        workbench_training_pipeline,
        {"config": training, "office": section(config, WorkbenchConfig), "run_key": key},
        enable_cache=cache,
        model=Model(name=_MODEL, version=key),
        settings=config.settings,
    )
    outputs: dict[str, Any] = run.steps["train_workbench_agent"].outputs
    report = write_text(OUTPUTS / "reports" / f"training-{key}.html", outputs[TRAINING_CURVE][0].load())
    say(f"training report: {os.path.relpath(report)}")
    return key, outputs[CHECKPOINT][0].id, outputs[WARM_START][0].id


def _evaluate(
    config: Config,
    content: str,
    key: str,
    checkpoint: UUID,
    warm_start: UUID | None,
    *,
    cache: bool,
    summary: Path | None,
) -> None:
    run = run_pipeline(
        workbench_evaluation_pipeline,
        {
            "config": section(config, EvaluationConfig),
            "office": section(config, WorkbenchConfig),
            "content": content,
            "checkpoint": checkpoint,
            "warm_start": warm_start,
        },
        enable_cache=cache,
        model=Model(name=_MODEL, version=key),
        settings=config.settings,
    )
    metrics, report = print_closing_table(run, key, summary=summary)
    for name, row in {**metrics["policies"], **metrics["baselines"]}.items():
        kinds = [f"{kind} {found['accuracy']:.0%}" for kind, found in row["by_kind"].items() if found["n"]]
        harm = row["outcomes"].get("side_effects", 0)
        say(f"{name}: {', '.join(kinds)}; side effects in {harm} of {row['n']}")
    say(f"report: {report}")
