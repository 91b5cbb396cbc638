"""Train the policy of the agent: warm start and GRPO."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from zenml import get_step_context, step
from zenml.types import HTMLString

from agent.judges.settings import open_judge
from agent.settings import AgentSettings, DemonstrationSettings
from agent.task import EmailSearchTask
from configs.schema import TrainingConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.checkpoint import CheckpointMaterializer
from reports.console import say
from steps.artifact_names import CHECKPOINT, HISTORY, MAIL_DATABASE, SCENARIOS, TRAINING_CURVE, WARM_START
from steps.interruption import run_cancellable
from steps.model_registry import find_checkpoint
from steps.project import MODELS, RUNS, git_revision, training_code
from steps.published_model import base_model_files
from steps.training.labels import require_labels
from steps.training.outputs import outputs_of
from steps.training.published_run import experiments_elsewhere, open_console
from training.backends.model_sources.folder import BaseModelFiles
from training.backends.serverless import remote_base_model
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.experiment import Experiment
from training.preflight import require_ready
from training.scoring import scoring_sources
from training.session import run_training
from training.settings import TrainerSettings
from training.traces import traced
from training.wandb_log import with_wandb


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
        continued.require_base(files)
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
    task = EmailSearchTask(
        database,
        scenarios,
        open_judge(config),
        agent_settings,
        weights=config.verifiable_weights,
        show=DemonstrationSettings.model_validate(config.model_dump(include=set(DemonstrationSettings.model_fields))),
        seed=config.seed,
    )
    with open_console(settings.max_steps, run_folder) as console:
        experiment = _experiment(config, run_key, files, base["content"])
        experiment = experiment.resuming(run_folder, experiments_elsewhere())
        experiment.save(run_folder)
        with with_wandb(console, experiment, run_folder) as logged, traced(logged, experiment) as progress:
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
    # Alerts stay unresolved in a run that continues from a suspicious policy.
    inherited = continued.manifest.alerts if continued else ()
    trained, warm_start, history, page = outputs_of(run, experiment, run_folder, files, base["source"], inherited)
    return trained, warm_start, history, page  # ZenML wants to see a tuple


def _experiment(config: TrainingConfig, run_key: str, files: BaseModelFiles, content: str) -> Experiment:
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
        base_model_content=content,
        created=datetime.now(UTC),
    )
