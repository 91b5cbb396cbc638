"""Train the policy of the agent: warm start and GRPO."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from zenml import get_step_context, log_metadata, step
from zenml.client import Client
from zenml.types import HTMLString

from agent.judges.settings import open_judge
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from configs.schema import TrainingConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.checkpoint import CheckpointMaterializer
from reports.console import TrainingConsole, say
from reports.training import training_html
from steps.artifact_names import CHECKPOINT, HISTORY, MAIL_DATABASE, SCENARIOS, TRAINING_CURVE, WARM_START
from steps.interruption import run_cancellable
from steps.model_registry import find_checkpoint
from steps.project import MODELS, RUNS, git_revision, training_code
from steps.published_model import base_model_files, manifest_fields
from steps.training.labels import require_labels
from steps.training.published_run import PublishedRun
from training.backends.model_sources.folder import BaseModelFiles
from training.backends.serverless import remote_base_model
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.experiment import Experiment
from training.history import StepRecord
from training.preflight import require_ready
from training.rollout_samples import sample_rollouts
from training.scoring import scoring_sources
from training.session import run_training
from training.settings import TrainerSettings
from training.traces import traced
from training.tracking import tracked
from training.trainer import TrainingRun


class PublishingConsole(TrainingConsole):
    """A console that publishes the run after every step."""

    def __init__(self, max_steps: int, published: PublishedRun) -> None:
        super().__init__(max_steps)
        self._published = published

    def step(self, row: StepRecord) -> None:
        super().step(row)
        self._published.publish()


def watch(max_steps: int, run_folder: Path) -> TrainingConsole:
    """Return the console of a run.

    With a remote artifact store it publishes the run, after fetching one that began elsewhere.
    """
    store = Client().active_stack.artifact_store
    if store.config.is_local:
        return TrainingConsole(max_steps)
    published = PublishedRun(store, run_folder)
    if steps := published.fetch():
        say(f"resuming the run from the artifact store: {steps} finished steps")
    return PublishingConsole(max_steps, published)


@step(output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer})
def train_agent(
    config: TrainingConfig,
    run_key: str | None,
    base: dict[str, str],
    database: MailDatabase,
    scenarios: list[Scenario],
    start: str | None = None,
) -> tuple[
    Annotated[Checkpoint, CHECKPOINT],
    Annotated[Checkpoint, WARM_START],
    Annotated[list[dict[str, Any]], HISTORY],
    Annotated[HTMLString, TRAINING_CURVE],
]:
    """Train on the train scenarios, or resume a killed run with the same configuration and data.

    The default of `run_key` is the name of the model version, a new one for each scheduled run. `start` is the id of
    the checkpoint that a new run continues from; without one it starts from the base model.

    The first output is the best validated checkpoint, or the last one without validation. The second is the checkpoint
    before the first GRPO step: the warm start, or the one continued from. Without either it equals the first output,
    whose step is above 0.
    """
    files = base_model_files(base["source"], base["checksum"], progress=say)
    if files.checksum != base["checksum"]:
        raise BadInput(f"base model {base['source']} changed between two steps: run the pipeline again")
    continued = find_checkpoint(start).checkpoint if start else None
    if continued:
        continued.require_base(files.id, files.checksum)
        continued.require_shape(config.lora_rank, config.lora_layers)
    config = config.model_copy(update={"continue_from": start or None})
    settings = TrainerSettings.model_validate(config.model_dump(include=set(TrainerSettings.model_fields)))
    require_labels(settings, scenarios)
    trained_base = str(files.path) if settings.backend != "serverless" else remote_base_model(base["source"])
    require_ready(settings, trained_base, models=MODELS, runs=RUNS)
    config.require_judge()
    run_key = run_key or get_step_context().model.version
    run_folder = RUNS / f"{run_key}-{base['checksum'][:8]}"
    agent_settings = AgentSettings.model_validate(config.model_dump(include=set(AgentSettings.model_fields)))
    weights = config.verifiable_weights
    task = EmailSearchTask(database, scenarios, open_judge(config), agent_settings, weights=weights, seed=config.seed)
    with watch(settings.max_steps, run_folder) as console:
        experiment = _experiment(config, run_key, files).resuming(run_folder)
        experiment.save(run_folder)
        with tracked(console, experiment, run_folder) as tracking, traced(tracking, experiment) as progress:
            run = run_cancellable(
                run_training(
                    task,
                    base_model=trained_base,
                    settings=settings,
                    max_tokens=config.max_tokens,
                    run_folder=run_folder,
                    progress=progress,
                    start=continued.path if continued else None,
                )
            )
    if run.checkpoint is None:
        raise BadInput(nothing_learnt(run))
    experiment = experiment.model_copy(update={"stopped": run.stopped})
    experiment.save(run_folder)
    described = manifest_fields(files, base["source"], experiment)
    alerts = {alert.name for row in run.history if row.step <= run.checkpoint_of for alert in row.alerts}
    if continued:  # alerts stay unresolved in a run that continues from a suspicious policy
        alerts |= set(continued.manifest.alerts)
    trained = Checkpoint.from_adapter(
        run.checkpoint, name=run_key, step=run.checkpoint_of, alerts=tuple(sorted(alerts)), **described
    )
    warm_start = trained
    if run.warm_start:
        warm_start = Checkpoint.from_adapter(run.warm_start, name=f"{run_key}-warm-start", step=0, **described)
    log_metadata({"training": outcome_of(run), "experiment": identity_of(experiment)}, infer_model=True)
    history = [row.model_dump() for row in run.history]
    ended = f"{run.history[-1].step} steps: {run.stopped}; the checkpoint is that of step {run.checkpoint_of}"
    rollouts = sample_rollouts(run.folder, run.history, run.checkpoint_of)
    page = training_html(
        history,
        title=f"Training run {experiment.name}",
        subtitle=ended,
        rollouts=[rollout.model_dump() for rollout in rollouts],
        best_step=run.checkpoint_of,
    )
    return trained, warm_start, history, HTMLString(page)


def _experiment(config: TrainingConfig, run_key: str, files: BaseModelFiles) -> Experiment:
    inputs = get_step_context().step_run.inputs
    data = {name: inputs[key][0] for name, key in ((MAIL_DATABASE, "database"), (SCENARIOS, "scenarios"))}
    data_seed = data[SCENARIOS].run_metadata.get("data_seed")
    return Experiment(
        name=config.experiment or run_key,
        run=run_key,
        config=config.model_dump(mode="json"),
        git_revision=git_revision(),
        code=training_code(),
        data={name: str(version.id) for name, version in data.items()},
        sources=scoring_sources(config),
        seeds={"seed": config.seed, **({"data_seed": data_seed} if isinstance(data_seed, int) else {})},
        base_model=files.id,
        base_model_checksum=files.checksum,
        created=datetime.now(UTC),
    )


def nothing_learnt(run: TrainingRun) -> str:
    """Return why a finished run has no checkpoint."""
    steps = [row for row in run.history if row.phase == "grpo"]
    if not steps:
        return f"nothing was trained ({run.stopped}): set demonstrations or max_steps above 0"
    if trained := sum(row.groups_trained for row in steps):
        return f"{trained} groups were trained on in {len(steps)} steps, and the backend left no checkpoint"
    rewards = ", ".join(f"{row.reward:.2f}" for row in steps[:5] if row.reward is not None)
    return (
        f"nothing was learnt in {len(steps)} steps: in every group all rollouts earned the same reward (step means {rewards}). "
        "Raise rollouts_per_group or temperature, choose easier questions, or begin with demonstrations"
    )


def identity_of(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "config_hash": experiment.config_hash,
        "git_revision": experiment.git_revision or "unknown",
        "data": experiment.data,
        "seeds": experiment.seeds,
    }


def outcome_of(run: TrainingRun) -> dict[str, Any]:
    last = run.history[-1]
    return {
        "steps": last.step,
        "resumed_from": run.resumed_from if run.resumed_from is not None else -1,
        "seconds": sum(row.seconds for row in run.history),
        "last_reward": last.reward if last.reward is not None else 0.0,
        **({"last_accuracy": last.accuracy} if last.accuracy is not None else {}),
        "stopped": run.stopped,
        "checkpoint_of_step": run.checkpoint_of,
        "alerts": sorted({alert.name for row in run.history for alert in row.alerts}),
        "warnings": sum(len(row.warnings) for row in run.history),
        **({"gpu_hours": sum(row.gpu_hours or 0.0 for row in run.history)} if last.gpu_hours is not None else {}),
        **({"gpu_cost": sum(row.gpu_cost or 0.0 for row in run.history)} if last.gpu_cost is not None else {}),
        "judge_cost": sum(row.judge_cost or 0.0 for row in run.history),
    }
