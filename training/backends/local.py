"""ART's local backend, whose failures on a GPU machine are one line."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import torch
from art.local import LocalBackend

from training.errors import BadInput

_OF_THE_MACHINE = re.compile(
    r"vLLM (subprocess|runtime|passed)|Child process|uv is required|Failed to install|Refusing to replace|CUDA error"
)
"""Beginnings of ART's messages about its processes, the installation of vLLM, or the driver."""
_RESUMES = "the same command resumes after the last finished step"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def sampling_gpu() -> int:
    """Return the second GPU that this process may use, by its number on the machine, as ART passes it to vLLM.

    Raises:
        BadInput: the second entry of `CUDA_VISIBLE_DEVICES` is no number, or 0, which ART takes for the GPU that trains.
    """
    visible = os.environ.get(_VISIBLE, "").split(",")
    if len(visible) < 2:
        return 1
    second = visible[1].strip()
    if not second.isdecimal() or int(second) == 0:
        raise BadInput(
            f"{_VISIBLE}={','.join(visible)}: with max_steps_off_policy, backend=local samples on the second GPU, "
            "which must be a number above 0; set it to two numbers, such as 0,1"
        )
    return int(second)


class ExplainingLocalBackend(LocalBackend):
    """Raises `BadInput` where vLLM or the trainer does not start, ends, or lacks memory; other errors stay as they are."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._visible = os.environ.get(_VISIBLE)

    async def _prepare_backend_for_training(self, model: Any, config: Any = None) -> tuple[str, str]:
        with explained("start"):
            return await super()._prepare_backend_for_training(model, config)

    async def train(self, model: Any, trajectory_groups: Any, **arguments: Any) -> Any:
        with explained("update"):
            return await super().train(model, trajectory_groups, **arguments)

    async def _train_sft(self, *arguments: Any, **named: Any) -> AsyncIterator[dict[str, float]]:
        with explained("warm start"):
            async for metrics in super()._train_sft(*arguments, **named):
                yield metrics

    async def close(self) -> None:
        try:
            await super().close()
        except RuntimeError:  # the trainer's process has ended, as its last call said
            self._close()
        finally:
            # ART hides the GPU that samples from this process, and so from the vLLM that an evaluation starts later.
            if self._visible is None:
                os.environ.pop(_VISIBLE, None)
            else:
                os.environ[_VISIBLE] = self._visible


@contextmanager
def explained(stage: str) -> Iterator[None]:
    """Raise `BadInput` for a failure of the machine."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BadInput(
            f"backend=local, {stage}: the GPU's memory is exhausted: lower max_context or lora_rank, take a smaller base_model, or end "
            f"other processes on the GPU; {_RESUMES}"
        ) from error
    except httpx.HTTPError as error:
        raise BadInput(
            f"backend=local, {stage}: vLLM does not answer ({type(error).__name__}: {error}); {_RESUMES}"
        ) from error
    except (RuntimeError, TimeoutError) as error:
        if not _OF_THE_MACHINE.match(str(error)):
            raise
        raise BadInput(f"backend=local, {stage}: {error}; {_RESUMES}") from error
