"""One training run from settings to finished run: opens the backend, trains, closes it."""

from __future__ import annotations

from pathlib import Path

import art

from training.backends import open_backend
from training.progress import Progress
from training.settings import TrainerSettings
from training.task import Task
from training.trainer import Trainer, TrainingRun


def model_config(settings: TrainerSettings) -> art.dev.InternalModelConfig:
    """What ART is told about the model beside its name."""
    config = art.dev.InternalModelConfig(init_args={"max_seq_length": settings.max_context})
    if settings.backend == "local" and settings.max_steps_off_policy:
        # On a GPU that does both, vLLM sleeps as long as an update takes, and nothing could be gathered meanwhile.
        config.update(trainer_gpu_ids=[0], inference_gpu_ids=[1])
    return config


async def run_training(
    task: Task,
    *,
    base_model: str,
    settings: TrainerSettings,
    max_tokens: int,
    run_folder: Path,
    progress: Progress | None = None,
) -> TrainingRun:
    """Trains an adapter for `base_model` (a folder or a Hub id), going on with whatever `run_folder` holds already.

    Raises:
        BadInput: the backend cannot work here, there is nothing to train on, or the run folder is damaged.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    backend = open_backend(settings, run_folder)
    model = art.TrainableModel(
        name=task.name,
        project="art",
        base_model=base_model,
        base_path=str(run_folder),
        report_metrics=[],  # ART would give all runs one name in Weights & Biases: see training.tracking
        _internal_config=model_config(settings),
    )
    try:
        trainer = Trainer(task, model, backend, settings, max_tokens=max_tokens, progress=progress)
        return await trainer.run()
    finally:
        await backend.close()
