"""The training and the evaluation of any task, as users see them: pipeline run, page, closing table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from zenml import Model
from zenml.client import Client
from zenml.pipelines.pipeline_definition import Pipeline

from cluster.placement import EVALUATION_STEPS, TRAINING_STEPS
from commands.pipeline_run import output, run_pipeline
from configs.config import Config
from configs.schema import TrainingConfig
from reports.console import console, say
from reports.tables import accuracy_over_minutes, closing_table, gain
from steps.artifact_names import CHECKPOINT, METRICS, REPORT, TRAINING_CURVE, WARM_START
from steps.model_registry import other_in_production
from steps.project import OUTPUTS
from training.files import write_text


class Trained(BaseModel):
    """A training: its model version, checkpoint and warm start."""

    version: str
    checkpoint: UUID
    warm_start: UUID | None


def train_by(
    pipeline: Pipeline,
    training: TrainingConfig,
    arguments: dict[str, Any],
    key: str,
    *,
    config: Config,
    model: str,
    cache: bool,
) -> Trained:
    """Train a version of `model`, resume its unfinished run `key`, or reuse the finished one. Write its page.

    `arguments` are the pipeline's, without the settings and the key.
    """
    say(f"training run {key} ({training.base_model}, backend {training.backend}, {training.scoring} reward)")
    run = run_pipeline(
        pipeline,
        {"config": training, "run_key": key, **arguments},
        enable_cache=cache,
        model=Model(name=model, version=key),
        settings=config.settings,
        steps={name: step for name, step in config.step_settings.items() if name in TRAINING_STEPS},
    )
    if run.steps["train_agent"].status.value == "cached":
        say("training: this run is finished, reused (--no-cache starts a new one)")
    page = output(run, "train_agent", TRAINING_CURVE).load()
    say(f"training report: {os.path.relpath(write_text(OUTPUTS / 'reports' / f'training-{key}.html', page))}")
    checkpoint, warm_start = (output(run, "train_agent", name).id for name in (CHECKPOINT, WARM_START))
    return Trained(version=key, checkpoint=checkpoint, warm_start=warm_start)


def evaluate_by(
    pipeline: Pipeline,
    arguments: dict[str, Any],
    trained: Trained,
    *,
    config: Config,
    model: str,
    cache: bool,
    summary: Path | None,
) -> dict[str, Any]:
    """Evaluate a version of `model` next to the one in production, and print the closing table. Return the metrics.

    Writes the page, and the metrics to `summary`. `arguments` are the pipeline's, without the settings and the checkpoints.
    """
    own = {"config": config.evaluation, "checkpoint": trained.checkpoint, "warm_start": trained.warm_start}
    run = run_pipeline(
        pipeline,
        {**own, "production": other_in_production(trained.version, model), **arguments},
        enable_cache=cache,
        model=Model(name=model, version=trained.version),
        settings=config.settings,
        steps={name: step for name, step in config.step_settings.items() if name in EVALUATION_STEPS},
    )
    if run.steps["run_inference"].status.value == "cached":
        say("evaluation: unchanged, answers reused (--no-cache asks again)")
    metrics: dict[str, Any] = output(run, "compute_metrics", METRICS).load()
    page = output(run, "compute_metrics", REPORT).load()
    report = write_text(OUTPUTS / "reports" / f"{trained.version}.html", page)
    if summary is not None:
        write_text(summary, json.dumps(metrics, indent=2) + "\n")
    say("")
    console.print(closing_table(metrics))
    for line in filter(None, (gain(metrics), accuracy_over_minutes(metrics))):
        say(line)
    if Client().active_stack.orchestrator.config.is_remote:
        promotion = metrics["promotion"]  # on this machine the gate has printed its decision
        promoted = "promoted" if promotion["promoted"] else "not promoted"
        say(f"{trained.version} {promoted} to production: {promotion['reason']}")
    say(f"report: {os.path.relpath(report)}")
    say(f"run {run.name} in the dashboard: zenml login --local, then open pipeline runs (id {run.id})")
    return metrics
