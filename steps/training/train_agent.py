"""Warm start and GRPO: the base model becomes the agent's policy."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from zenml import get_step_context, log_metadata, step
from zenml.client import Client
from zenml.types import HTMLString

from agent.judges.exact import ExactJudge
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from configs.schema import TrainingConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.checkpoint import CheckpointMaterializer
from reports.console import TrainingConsole, say
from reports.training import training_html
from steps.artifact_names import CHECKPOINT, HISTORY, MAIL_DATABASE, SCENARIOS, WARM_START
from steps.project import MODELS, RUNS
from steps.training.published_run import PublishedRun
from training.backends.base_model import resolve_base_model
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.session import run_training
from training.settings import TrainerSettings
from training.trainer import StepRecord

TRAINING_CURVE = "training_curve"


class PublishingConsole(TrainingConsole):
    """Publishes the run after every step that it shows."""

    def __init__(self, max_steps: int, published: PublishedRun) -> None:
        super().__init__(max_steps)
        self._published = published

    def step(self, row: StepRecord) -> None:
        super().step(row)
        self._published.publish()


def watch(max_steps: int, run_folder: Path) -> TrainingConsole:
    """What follows a run. With artifacts on other machines the run is published too, and fetched when it began elsewhere."""
    store = Client().active_stack.artifact_store
    if store.config.is_local:
        return TrainingConsole(max_steps)
    published = PublishedRun(store, run_folder)
    if steps := published.fetch():
        say(f"the run goes on from the artifact store: {steps} finished steps")
    return PublishingConsole(max_steps, published)


@step(output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer})
def train_agent(
    config: TrainingConfig,
    run_key: str | None,
    base: dict[str, str],
    database: MailDatabase,
    scenarios: list[Scenario],
) -> tuple[
    Annotated[Checkpoint, CHECKPOINT],
    Annotated[Checkpoint, WARM_START],
    Annotated[list[dict[str, Any]], HISTORY],
    Annotated[HTMLString, TRAINING_CURVE],
]:
    """Trains on the train scenarios, or goes on where a killed run of the same configuration and data stopped.

    Without a `run_key` the model version is the run: each scheduled run trains from the start.

    The first output is the best validated checkpoint, or the last one where nothing was validated. Without a warm start the
    second output is the same checkpoint as the first.
    """
    files = resolve_base_model(base["source"], MODELS)
    if files.checksum != base["checksum"]:
        raise BadInput(f"base model {base['source']} changed between two steps: run the pipeline again")
    agent_settings = AgentSettings.model_validate(config.model_dump(include=set(AgentSettings.model_fields)))
    settings = TrainerSettings.model_validate(config.model_dump(include=set(TrainerSettings.model_fields)))
    run_key = run_key or get_step_context().model.version
    run_folder = RUNS / f"{run_key}-{base['checksum'][:8]}"
    with watch(settings.max_steps, run_folder) as console:
        run = asyncio.run(
            run_training(
                EmailSearchTask(database, scenarios, ExactJudge(), agent_settings, seed=config.seed),
                base_model=str(files.path),
                settings=settings,
                max_tokens=config.max_tokens,
                run_folder=run_folder,
                progress=console,
            )
        )
    if run.checkpoint is None:
        raise BadInput("nothing was trained: set demonstrations or max_steps above 0")
    inputs = get_step_context().step_run.inputs
    described = {
        "base_model": files.id,
        "base_model_checksum": files.checksum,
        "base_model_source": base["source"],
        "config": config.model_dump(mode="json"),
        "data": {name.lower(): str(inputs[key][0].id) for name, key in ((MAIL_DATABASE, "database"), (SCENARIOS, "scenarios"))},
        "created": datetime.now(UTC),
    }
    history = [row.model_dump() for row in run.history]
    last = history[-1]
    alerts = {alert["name"] for row in history if row["step"] <= run.checkpoint_of for alert in row["alerts"]}
    trained = Checkpoint.from_adapter(
        run.checkpoint, name=run_key, step=run.checkpoint_of, alerts=tuple(sorted(alerts)), **described
    )
    warm_start = Checkpoint.from_adapter(run.warm_start or run.checkpoint, name=f"{run_key}-warm-start", step=0, **described)
    log_metadata(
        {
            "training": {
                "steps": last["step"],
                "resumed_from": run.resumed_from if run.resumed_from is not None else -1,
                "seconds": sum(row["seconds"] for row in history),
                "last_reward": last["reward"] if last["reward"] is not None else 0.0,
                "last_accuracy": last["accuracy"] if last["accuracy"] is not None else 0.0,
                "stopped": run.stopped,
                "checkpoint_of_step": run.checkpoint_of,
                "alerts": sorted({alert["name"] for row in history for alert in row["alerts"]}),
            }
        },
        infer_model=True,
    )
    ended = f"{last['step']} steps: {run.stopped}; the checkpoint is that of step {run.checkpoint_of}"
    page = training_html(history, title=f"Training run {run_key}", subtitle=ended)
    return trained, warm_start, history, HTMLString(page)
