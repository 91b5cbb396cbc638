"""The part of a training step that every task shares: the run itself, its records and its outputs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zenml.types import HTMLString

from configs.schema import TrainingConfig
from reports.console import say
from steps.interruption import run_cancellable
from steps.project import MODELS, RUNS, git_revision
from steps.published_model import base_model_files
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
from training.task import Task
from training.traces import traced
from training.wandb_log import with_wandb


class Begun:
    """A training run whose requirements were checked, with its base model and the checkpoint that it starts from.

    Raises:
        BadInput: the base model changed, the machine does not suffice, or `continued` does not fit.
    """

    def __init__(
        self, config: TrainingConfig, run_key: str, base: dict[str, str], continued: Checkpoint | None
    ) -> None:
        self.config, self.run_key, self._base, self._continued = config, run_key, base, continued
        self.files: BaseModelFiles = base_model_files(base["source"], base["checksum"], progress=say)
        if self.files.checksum != base["checksum"]:
            raise BadInput(f"base model {base['source']} changed between two steps: run the pipeline again")
        if continued:
            continued.require_base(self.files)
            continued.require_shape(config.lora_rank, config.lora_layers)
        serverless = config.backend == "serverless"
        self._trained_base = remote_base_model(base["source"]) if serverless else str(self.files.path)
        require_ready(config, self._trained_base, models=MODELS, runs=RUNS)

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

    def train(
        self, task: Task, experiment: Experiment
    ) -> tuple[Checkpoint, Checkpoint, list[dict[str, Any]], HTMLString]:
        """Train, or resume a killed run of the same key. Return the outputs of a training step."""
        run_folder: Path = RUNS / f"{self.run_key}-{self._base['checksum'][:8]}"
        with open_console(self.config.max_steps, run_folder) as console:
            experiment = experiment.resuming(run_folder, experiments_elsewhere())
            experiment.save(run_folder)
            with with_wandb(console, experiment, run_folder) as logged, traced(logged, experiment) as progress:
                run = run_cancellable(
                    run_training(
                        task,
                        base_model=self._trained_base,
                        settings=self.config,
                        max_tokens=self.config.max_tokens,
                        run_folder=run_folder,
                        progress=progress,
                        start=self._continued.path if self._continued else None,
                    )
                )
        # Alerts stay unresolved in a run that continues from a suspicious policy.
        inherited = self._continued.manifest.alerts if self._continued else ()
        return outputs_of(run, experiment, run_folder, self.files, self._base["source"], inherited)
