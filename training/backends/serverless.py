"""ART's serverless backend, which downloads every checkpoint, so that the trainer finds it as in a local run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from art import TrainableModel
from art.serverless.backend import ServerlessBackend
from art.types import ServerlessTrainResult
from art.utils.get_model_step import get_step_from_dir
from art.utils.output_dirs import get_model_dir
from openai import APIConnectionError, APIStatusError, OpenAIError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential

from training.errors import BadInput
from training.record.history import checkpoint_folder

DEFAULT_PROJECT = "email-search-agent"
"""Weights & Biases project when WANDB_PROJECT is unset."""
_MAX_REASON_CHARS = 200
_ATTEMPTS = 3
_FIRST_WAIT_SECONDS = 2.0
_REFUSED_FOR_NOW = {429, 503}


def remote_base_model(base_model: str) -> str:
    """Return the name of the base model on W&B's servers. Raises BadInput if they cannot fetch it."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base_model) or Path(base_model).exists():
        raise BadInput(
            f"backend=serverless trains on W&B's servers, which cannot fetch base_model={base_model}: name a model of the "
            "Hugging Face Hub that they serve, as owner/name"
        )
    return base_model


class PullingServerlessBackend(ServerlessBackend):
    """Download the adapter after every update. Failures of the service become `BadInput` with its message.

    An update is submitted up to three times, with growing waits, if the service certainly did not make it: it was not
    reached, it refused for now, or it said that the job failed. A download is repeated in any case. After another
    failure the update may still be under way, so that the run ends and its next start looks.
    """

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
        groups = list(trajectory_groups)
        with _failures_told("the update"):
            result: ServerlessTrainResult = await _repeating("the update", _was_not_made)(
                super().train, model, groups, **parameters
            )
        await self._pull(model)
        return result

    async def _train_sft(self, model: Any, *arguments: Any, **options: Any) -> AsyncIterator[dict[str, float]]:
        with _failures_told("the warm start"):
            async for metrics in super()._train_sft(model, *arguments, **options):
                yield metrics
        await self._pull(model)

    async def _pull(self, model: TrainableModel) -> None:
        """Download the newest checkpoint, all or nothing."""
        with _failures_told("asking for the newest checkpoint"):
            step = await self._get_step(model)
        target = checkpoint_folder(Path(_folder(model)), step)
        partial = target.with_name(f".{target.name}.partial")
        what = f"downloading checkpoint {step}"

        async def download() -> None:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            await self._experimental_pull_model_checkpoint(model, step=step, local_path=str(partial))

        try:
            with _failures_told(what):
                await _repeating(what, lambda error: isinstance(error, _failures()))(download)
            os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _folder(model: TrainableModel) -> str:
    return get_model_dir(model=model, art_path=model.base_path)


def _repeating(what: str, may_pass: Callable[[BaseException], bool]) -> AsyncRetrying:
    def tell(state: RetryCallState) -> None:
        assert state.outcome is not None and state.next_action is not None
        wait, reason = state.next_action.sleep, _reason(state.outcome.exception())
        print(f"backend=serverless: {what} failed: {reason}; next try in {wait:g} s", flush=True)

    return AsyncRetrying(
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(multiplier=_FIRST_WAIT_SECONDS),
        retry=retry_if_exception(may_pass),
        before_sleep=tell,
        reraise=True,
    )


def _was_not_made(error: BaseException) -> bool:
    """Return whether an update that ended with this error has certainly changed nothing on the servers."""
    if isinstance(error, APIStatusError):
        return error.status_code in _REFUSED_FOR_NOW
    if isinstance(error, APIConnectionError):
        return isinstance(error.__cause__, httpx.ConnectError)
    return isinstance(error, RuntimeError) and str(error).startswith("Training job failed")  # ART's words


def _failures() -> tuple[type[BaseException], ...]:
    import wandb

    return OpenAIError, wandb.Error, RuntimeError, ValueError, OSError


def _reason(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:_MAX_REASON_CHARS] or type(error).__name__


@contextmanager
def _failures_told(what: str) -> Iterator[None]:
    try:
        yield
    except _failures() as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"backend=serverless: {what} failed: {_reason(error)}; the same command resumes after the last finished step"
        ) from error
