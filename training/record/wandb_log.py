"""Log the history of a run to Weights & Biases: to its servers if there is a key, or to files with `WANDB_MODE=offline`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from training.record.experiment import Experiment
from training.record.history import StepRecord
from training.record.progress import ForwardedProgress, Progress


def logs_to_wandb() -> bool:
    """Return whether the environment asks for Weights & Biases."""
    mode = os.environ.get("WANDB_MODE", "online")
    return mode == "offline" or (mode == "online" and bool(os.environ.get("WANDB_API_KEY")))


@contextmanager
def with_wandb(progress: Progress, experiment: Experiment, folder: Path) -> Iterator[Progress]:
    """Wrap `progress` to log to Weights & Biases as well, if the environment asks for it.

    A resumed run keeps its id there.
    """
    if not logs_to_wandb():
        yield progress
        return
    import wandb  # takes a second to import

    folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "email-search-agent"),
        # W&B reads its environment once per process, possibly earlier, for the serverless backend.
        mode=cast(Any, os.environ.get("WANDB_MODE", "online")),
        name=experiment.name,
        id=folder.name if experiment.run.isdigit() else experiment.run,
        resume="allow",
        dir=folder,
        config={
            **experiment.config,
            "config_hash": experiment.config_hash,
            **experiment.model_dump(
                mode="json",
                include={"git_revision", "data", "sources", "seeds", "base_model_checksum", "base_model_content"},
            ),
        },
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    run.define_metric("*", step_metric="step")  # a step that is repeated after a kill may come twice
    try:
        yield _WandbLog(progress, run)
    finally:
        run.finish()


class _WandbLog(ForwardedProgress):
    def __init__(self, progress: Progress, run: Any) -> None:
        super().__init__(progress)
        self._run = run

    def step(self, row: StepRecord) -> None:
        self._progress.step(row)
        values = {name: value for name, value in row.model_dump().items() if isinstance(value, int | float)}
        self._run.log({**values, "alert_count": len(row.alerts)})

    def stopped(self, reason: str, best: str = "") -> None:
        self._progress.stopped(reason, best)
        self._run.summary["stopped"] = "; ".join(filter(None, (reason, best)))
