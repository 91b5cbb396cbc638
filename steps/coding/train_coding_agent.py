"""Warm start and GRPO on bugs: the base model becomes the coding agent's policy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from zenml import step
from zenml.types import HTMLString

from configs.schema import CodingConfig, TrainingConfig
from materializers.checkpoint import CheckpointMaterializer
from reports.console import say
from steps.artifact_names import CHECKPOINT, CODING_SCENARIOS, HISTORY, TRAINING_CURVE, WARM_START
from steps.coding.sandbox_service import sandbox_service
from steps.interruption import run_cancellable
from steps.project import MODELS, OUTPUTS, RUNS, coding_code, git_revision
from steps.published_model import base_model_files
from steps.training.outputs import outputs_of
from steps.training.published_run import experiments_elsewhere, open_console
from tasks.coding.checking import require_checked
from tasks.coding.rewards import reward_sources
from tasks.coding.task import BUILT_IN, CodingTask, load_scenarios
from training.backends.serverless import remote_base_model
from training.checkpoint import Checkpoint
from training.experiment import Experiment
from training.preflight import require_ready
from training.scoring import scoring_sources
from training.session import run_training
from training.settings import TrainerSettings
from training.traces import traced
from training.wandb_log import with_wandb


@step(output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer})
def train_coding_agent(
    config: TrainingConfig, coding: CodingConfig, run_key: str, base: dict[str, str]
) -> tuple[
    Annotated[Checkpoint, CHECKPOINT],
    Annotated[Checkpoint, WARM_START],
    Annotated[list[dict[str, Any]], HISTORY],
    Annotated[HTMLString, TRAINING_CURVE],
]:
    """Train on the bugs, or resume a killed run of the same settings and code.

    The outputs are those of `train_agent`.
    """
    files = base_model_files(base["source"], base["checksum"], progress=say)
    settings = TrainerSettings.model_validate(config.model_dump(include=set(TrainerSettings.model_fields)))
    trained_base = str(files.path) if settings.backend != "serverless" else remote_base_model(base["source"])
    require_ready(settings, trained_base, models=MODELS, runs=RUNS)
    run_folder = RUNS / f"{run_key}-{base['checksum'][:8]}"
    experiment = Experiment(
        name=config.experiment or run_key,
        run=run_key,
        config={**config.model_dump(mode="json"), **coding.model_dump(mode="json")},
        git_revision=git_revision(),
        code=coding_code(),
        data={CODING_SCENARIOS: f"{coding.bugs}, seed {coding.coding_seed}"},
        sources=scoring_sources(config) | reward_sources(coding.coding_reward),
        seeds={"seed": config.seed, "coding_seed": coding.coding_seed},
        base_model=files.id,
        base_model_checksum=files.checksum,
        base_model_content=base["content"],
        created=datetime.now(UTC),
    )
    scenarios = load_scenarios(coding)
    images, capacity = coding.bugs != BUILT_IN, 2 * settings.max_concurrent
    with sandbox_service(coding.sandbox_url, capacity=capacity, images=images) as sandbox_url:
        task = CodingTask(
            scenarios,
            coding,
            sandbox_url,
            max_tokens=config.max_tokens,
            rollout_timeout=config.rollout_timeout,
            system_prompt=config.system_prompt,
            seed=config.seed,
        )
        # The tests of a repository take minutes, those of a built-in bug milliseconds.
        passed = OUTPUTS / "checked_bugs.txt" if images else None
        run_cancellable(
            require_checked(
                scenarios,
                sandbox_url,
                patience=coding.sandbox_patience,
                concurrent=settings.max_concurrent,
                passed=passed,
            )
        )
        say(f"{len(scenarios)} bugs: their tests fail before the reference patch and pass after it")
        with open_console(settings.max_steps, run_folder) as console:
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
                    )
                )
    trained, warm_start, history, page = outputs_of(run, experiment, run_folder, files, base["source"])
    return trained, warm_start, history, page  # ZenML wants to see a tuple
