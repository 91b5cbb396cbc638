"""ART's serverless backend, which downloads every checkpoint, so that the trainer finds it as in a local run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from art import TrainableModel
from art.serverless.backend import ServerlessBackend
from art.types import ServerlessTrainResult
from art.utils.get_model_step import get_step_from_dir
from art.utils.output_dirs import get_model_dir
from openai import OpenAIError

from training.errors import BadInput
from training.history import checkpoint_folder

DEFAULT_PROJECT = "email-search-agent"
"""Weights & Biases project when WANDB_PROJECT is unset."""
_MAX_REASON_CHARS = 200


def remote_base_model(base_model: str) -> str:
    """Return the name of the base model on W&B's servers. Raises BadInput if they cannot fetch it."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base_model) or Path(base_model).exists():
        raise BadInput(
            f"backend=serverless trains on W&B's servers, which cannot fetch base_model={base_model}: name a model of the "
            "Hugging Face Hub that they serve, as owner/name"
        )
    return base_model


class PullingServerlessBackend(ServerlessBackend):
    """Download the adapter after every update. Failures of the service become `BadInput` with its message."""

    async def register(self, model: Any) -> None:
        """Register the model, and delete what an interrupted step left on the servers.

        Raises:
            BadInput: the servers and this machine know different histories of the run.
        """
        with _failures_told("registering the model"):
            await super().register(model)
            there = await self._get_step(model)
        here = get_step_from_dir(_folder(model))
        if there == here + 1:  # the update finished but its history row was not written, so the step runs again
            with _failures_told(f"deleting checkpoint {there} of an interrupted step"):
                await self._delete_checkpoint_files(model, list(range(here + 1)))
                there = await self._get_step(model)
        if there != here:
            raise BadInput(
                f"model {model.name} has {there} checkpoints on W&B's servers and {here} here: continue where its run folder is, "
                "or start a new run with --set experiment=NAME"
            )

    async def train(self, model: Any, trajectory_groups: Iterable[Any], **parameters: Any) -> ServerlessTrainResult:
        with _failures_told("the update"):
            result = await super().train(model, trajectory_groups, **parameters)
        await self._pull(model)
        return result

    async def _train_sft(self, model: Any, *arguments: Any, **options: Any) -> AsyncIterator[dict[str, float]]:
        with _failures_told("the warm start"):
            async for metrics in super()._train_sft(model, *arguments, **options):
                yield metrics
        await self._pull(model)

    async def _pull(self, model: TrainableModel) -> None:
        """Download the newest checkpoint, all or nothing."""
        step = await self._get_step(model)
        target = checkpoint_folder(Path(_folder(model)), step)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            with _failures_told(f"downloading checkpoint {step}"):
                await self._experimental_pull_model_checkpoint(model, step=step, local_path=str(partial))
            os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _folder(model: TrainableModel) -> str:
    return get_model_dir(model=model, art_path=model.base_path)


@contextmanager
def _failures_told(what: str) -> Iterator[None]:
    import wandb

    try:
        yield
    except (OpenAIError, wandb.Error, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, BadInput):
            raise
        reason = " ".join(str(error).split())[:_MAX_REASON_CHARS] or type(error).__name__
        raise BadInput(
            f"backend=serverless: {what} failed: {reason}; the same command resumes after the last finished step"
        ) from error
