"""The part of a training step that every task shares: the run itself, its records and its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zenml import get_step_context
from zenml.types import HTMLString

from configs.schema import LearnLoopConfig, TrainingConfig
from reports.console import say
from steps.interruption import run_cancellable
from steps.model_registry import find_checkpoint
from steps.project import MODELS, RUNS, git_revision
from steps.published_model import base_model_files, manifest_fields
from steps.training.outputs import alerts_about, nothing_learnt, outputs_of, seconds_until
from steps.training.published_run import RUNS_FOLDER, experiments_elsewhere, open_console
from training.backends.model_sources.folder import BaseModelFiles
from training.backends.serverless import remote_base_model
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.guard.preflight import require_ready
from training.loop.trainer import TrainingRun
from training.record.experiment import Experiment
from training.record.progress import Progress
from training.record.traces import traced
from training.record.wandb_log import with_wandb
from training.scoring.scorer import scoring_sources
from training.session import run_training
from training.task import Task


class Begun:
    """A training run whose requirements were checked, with its base model and the checkpoint that it starts from.

    Raises:
        BadInput: the base model changed, the machine does not suffice, or the checkpoint does not fit.
    """

    def __init__(
        self,
        config: TrainingConfig | LearnLoopConfig,
        run_key: str | None,
        base: dict[str, str],
        start: str | None,
        runs: Path = RUNS,
    ) -> None:
        """`start` is the id of the checkpoint to start from. The default of `run_key` is the name of the model version."""
        self.config = config.model_copy(update={"continue_from": start or None})
        self.run_key: str = run_key or get_step_context().model.version
        self._base, self._continued = base, find_checkpoint(start).checkpoint if start else None
        self.files: BaseModelFiles = base_model_files(base["source"], base["checksum"], progress=say)
        if self.files.checksum != base["checksum"]:
            raise BadInput(f"base model {base['source']} changed between two steps: run the pipeline again")
        if self._continued:
            self._continued.require_base(self.files)
            self._continued.require_shape(config.lora_rank, config.lora_layers)
        serverless = config.backend == "serverless"
        trained_base = remote_base_model(base["source"]) if serverless else str(self.files.path)
        require_ready(config, trained_base, models=MODELS, runs=runs)
        self.trained_with: dict[str, Any] = {
            "base_model": trained_base,
            "settings": self.config,
            "max_tokens": config.max_tokens,
            "start": self._continued.path if self._continued else None,
        }
        """Arguments of `run_training`."""

    def experiment(
        self,
        *,
        code: str,
        data: dict[str, str],
        seeds: dict[str, int],
        of_task: dict[str, Any] | None = None,
        sources: dict[str, str] | None = None,
    ) -> Experiment:
        """Return the description of the run; `of_task` and `sources` are the task's own settings."""
        return Experiment(
            name=self.config.experiment or self.run_key,
            run=self.run_key,
            config={**self.config.model_dump(mode="json"), **(of_task or {})},
            git_revision=git_revision(),
            code=code,
            data=data,
            sources=scoring_sources(self.config) | (sources or {}),
            seeds={"seed": self.config.seed, **seeds},
            base_model=self.files.id,
            base_model_checksum=self.files.checksum,
            base_model_content=self._base["content"],
            created=datetime.now(UTC),
        )

    @contextmanager
    def recorded(
        self, experiment: Experiment, run_folder: Path, kept_in: str = RUNS_FOLDER
    ) -> Iterator[tuple[Experiment, Progress]]:
        """Open the records of the run: its folder, console, Weights & Biases and traces.

        Yields the experiment, which continues the one of an earlier start. `kept_in` is the folder of the artifact store.
        """
        with open_console(self.config.max_steps, run_folder, kept_in) as console:
            experiment = experiment.resuming(run_folder, experiments_elsewhere(kept_in))
            experiment.save(run_folder)
            with with_wandb(console, experiment, run_folder) as logged, traced(logged, experiment) as progress:
                yield experiment, progress

    def train(
        self, task: Task, experiment: Experiment
    ) -> tuple[Checkpoint, Checkpoint, list[dict[str, Any]], HTMLString]:
        """Train, or resume a killed run of the same key. Return the outputs of a training step."""
        version = self.run_key
        if version.isdigit():  # ZenML numbers the versions of each model, and begins again when its database is new
            version += f"-{get_step_context().model.id.hex[:8]}"
        run_folder: Path = RUNS / f"{version}-{self._base['checksum'][:8]}"
        with self.recorded(experiment, run_folder) as (experiment, progress):
            run = run_cancellable(run_training(task, run_folder=run_folder, progress=progress, **self.trained_with))
        return outputs_of(run, experiment, run_folder, self.checkpoints_of(run, experiment))

    def checkpoints_of(self, run: TrainingRun, experiment: Experiment) -> tuple[Checkpoint, Checkpoint]:
        """Return the checkpoint of a finished run, and that before its first GRPO step, or the first again without one.

        Raises:
            BadInput: the run has no checkpoint.
        """
        if run.checkpoint is None:
            raise BadInput(nothing_learnt(run))
        described = manifest_fields(self.files, self._base["source"], experiment)
        # Alerts stay unresolved in a run that continues from a suspicious policy, and its training counts as well.
        earlier = self._continued.manifest if self._continued else None
        inherited, seconds_before = (earlier.alerts, earlier.seconds) if earlier else ((), 0.0)
        alerts = alerts_about(run, self.config.max_steps_off_policy).union(inherited)

        def seconds_at(step: int) -> float | None:
            return None if seconds_before is None else seconds_before + seconds_until(run, step)

        trained = Checkpoint.from_adapter(
            run.checkpoint,
            name=experiment.run,
            step=run.checkpoint_of,
            alerts=tuple(sorted(alerts)),
            seconds=seconds_at(run.checkpoint_of),
            start_seconds=seconds_at(0),
            **described,
        )
        if not run.warm_start:
            return trained, trained
        name = f"{experiment.run}-warm-start"
        before = {"name": name, "step": 0, "alerts": tuple(sorted(inherited)), "seconds": seconds_at(0)}
        return trained, Checkpoint.from_adapter(run.warm_start, **before, **described)
