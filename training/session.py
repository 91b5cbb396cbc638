"""Run one training: open the backend, train, and close the backend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import art
from filelock import FileLock, Timeout

from training.backends import open_backend, vllm_lora_rank
from training.backends.prompt_template import replaced_template, require_growing_prompts
from training.errors import BadInput
from training.loop.decisions import decisions_of
from training.loop.trainer import Trainer, TrainingRun
from training.record.progress import Progress
from training.settings import TrainerSettings
from training.task import Task


def model_config(settings: TrainerSettings, chat_template: Path | None = None) -> art.dev.InternalModelConfig:
    """Return the configuration of the model for ART. `chat_template` replaces the template of the base."""
    config = art.dev.InternalModelConfig(init_args={"max_seq_length": settings.max_context})
    if settings.backend != "local":
        return config
    # ART's default ratio of alpha to rank. vLLM refuses adapters of a higher rank than it was started with.
    rank = settings.lora_rank
    config["peft_args"] = {"r": rank, "lora_alpha": 2 * rank, "random_state": settings.seed}
    config["engine_args"] = {"max_lora_rank": vllm_lora_rank(rank)}
    config["chat_template_tool_schema_format"] = "vllm_openai"  # the order of vLLM's keys, not of ART's types
    if chat_template is not None:
        config["chat_template_path"] = str(chat_template)  # of vLLM and of ART's tokenizer
    if settings.max_steps_off_policy:
        # On a shared GPU vLLM sleeps during updates, so nothing could be gathered ahead.
        from training.backends.local import sampling_gpu

        config.update(trainer_gpu_ids=[0], inference_gpu_ids=[sampling_gpu()])
    return config


class _Model(art.TrainableModel):
    """A model for which ART opens no Weights & Biases run, because `training.record.wandb_log` reports the run."""

    def _get_wandb_run(self) -> None:
        return None


def _place(task_name: str, settings: TrainerSettings, run: str) -> dict[str, Any]:
    """Return name and project of the model. On W&B's servers runs share a namespace; here each has its own folder."""
    if settings.backend != "serverless":
        return {"name": task_name, "project": "art"}
    from training.backends.serverless import DEFAULT_PROJECT

    return {
        "name": f"{task_name}-{run}",
        "project": os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
        "entity": os.environ.get("WANDB_ENTITY"),
    }


async def run_training(
    task: Task,
    *,
    base_model: str,
    settings: TrainerSettings,
    max_tokens: int,
    run_folder: Path,
    progress: Progress | None = None,
    start: Path | None = None,
    run: str | None = None,
) -> TrainingRun:
    """Train an adapter for `base_model`, and resume the run that `run_folder` may hold.

    The base is a folder or a Hub id; W&B's servers accept Hub ids only.

    A new run starts from the adapter in the folder `start`, or from the base model without one. `run` is its name, which is
    its own on a server that runs share; by default that of its folder.

    Raises:
        BadInput: the backend cannot work here, there is nothing to train on, the run folder is damaged, or another process
            trains the run.
    """
    run = run or run_folder.name
    run_folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run_folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInput(f"run {run} is being trained by another process: wait for it, or end that first") from None
    try:
        return await _train(task, base_model, settings, max_tokens, run_folder, progress, start, run)
    finally:
        lock.release()


async def _train(
    task: Task,
    base_model: str,
    settings: TrainerSettings,
    max_tokens: int,
    run_folder: Path,
    progress: Progress | None,
    start: Path | None,
    run: str,
) -> TrainingRun:
    if settings.backend == "torch" and settings.turn_credit is None and decisions_of(task, settings):
        settings = settings.model_copy(update={"turn_credit": 0.0})  # replies in one state are compared already
    template = None
    if settings.backend != "serverless":
        require_growing_prompts(base_model, settings.backend)
        template = replaced_template(base_model)
    backend = open_backend(settings, run_folder)
    model = _Model(
        **_place(task.name, settings, run),
        base_model=base_model,
        base_path=str(run_folder),
        report_metrics=[],  # training.record.wandb_log reports to Weights & Biases, where ART would give all runs the same name
        _internal_config=model_config(settings, template),
    )
    try:
        trainer = Trainer(task, model, backend, settings, max_tokens=max_tokens, progress=progress, start=start)
        return await trainer.run()
    finally:
        await backend.close()
