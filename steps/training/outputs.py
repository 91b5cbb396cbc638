"""What a finished training run leaves: checkpoints, history and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zenml import log_metadata
from zenml.types import HTMLString

from reports.training import training_html
from training.checkpoint import Checkpoint
from training.loop.trainer import TrainingRun
from training.record.experiment import MAIL_TASK, Experiment
from training.record.rollout_samples import sample_rollouts

SERVICE_PAGE = "http://localhost:8080/"
"""Where a service is by default."""


def outputs_of(
    run: TrainingRun, experiment: Experiment, run_folder: Path, checkpoints: tuple[Checkpoint, Checkpoint]
) -> tuple[Checkpoint, Checkpoint, list[dict[str, Any]], HTMLString]:
    """Return the outputs of a training step, and describe the run in its folder and in the metadata of the step."""
    experiment = experiment.model_copy(update={"stopped": run.stopped})
    experiment.save(run_folder)
    log_metadata({"training": _outcome_of(run), "experiment": _identity_of(experiment)}, infer_model=True)
    history = [row.model_dump() for row in run.history]
    page = training_html(
        history,
        title=f"Training run {experiment.name}",
        subtitle=f"{run.history[-1].step} steps: {run.stopped}; the checkpoint is that of step {run.checkpoint_of}",
        rollouts=[rollout.model_dump() for rollout in sample_rollouts(run.folder, run.history, run.checkpoint_of)],
        best_step=run.checkpoint_of,
        ask_at=SERVICE_PAGE if experiment.task == MAIL_TASK else None,
    )
    return *checkpoints, history, HTMLString(page)


def alerts_about(run: TrainingRun, steps_ahead: int) -> set[str]:
    """Return the names of the alerts of all steps up to the last one that may have sampled from the run's checkpoint.

    The step after a checkpoint is the first to sample from it, and `steps_ahead` (`max_steps_off_policy`) more may.
    """
    last = run.checkpoint_of + 1 + steps_ahead
    return {alert.name for row in run.history if row.step <= last for alert in row.alerts}


def nothing_learnt(run: TrainingRun) -> str:
    """Return why a finished run has no checkpoint."""
    steps = [row for row in run.history if row.phase == "grpo"]
    if not steps:
        return f"nothing was trained ({run.stopped}): set demonstrations or max_steps above 0"
    if trained := sum(row.groups_trained for row in steps):
        return f"{trained} groups were trained on in {len(steps)} steps, and the backend left no checkpoint"
    rewards = ", ".join(f"{row.reward:.2f}" for row in steps[:5] if row.reward is not None)
    return (
        f"nothing was learnt in {len(steps)} steps: in every group all rollouts earned the same reward (step means {rewards}). "
        "Raise rollouts_per_group or temperature, choose easier questions, or begin with demonstrations"
    )


def _identity_of(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "config_hash": experiment.config_hash,
        "git_revision": experiment.git_revision or "unknown",
        "data": experiment.data,
        "seeds": experiment.seeds,
    }


def _outcome_of(run: TrainingRun) -> dict[str, Any]:
    last = run.history[-1]
    return {
        "steps": last.step,
        "resumed_from": run.resumed_from if run.resumed_from is not None else -1,
        "seconds": sum(row.seconds for row in run.history),
        "last_reward": last.reward if last.reward is not None else 0.0,
        **({"last_accuracy": last.accuracy} if last.accuracy is not None else {}),
        "stopped": run.stopped,
        "checkpoint_of_step": run.checkpoint_of,
        "alerts": sorted({alert.name for row in run.history for alert in row.alerts}),
        "warnings": sum(len(row.warnings) for row in run.history),
        **({"gpu_hours": sum(row.gpu_hours or 0.0 for row in run.history)} if last.gpu_hours is not None else {}),
        **({"gpu_cost": sum(row.gpu_cost or 0.0 for row in run.history)} if last.gpu_cost is not None else {}),
        "judge_cost": sum(row.judge_cost or 0.0 for row in run.history),
    }


def seconds_until(run: TrainingRun, step: int) -> float:
    """Return the seconds of all rows up to that of `step`."""
    return sum(row.seconds for row in run.history if row.step <= step)
