"""`--schedule CRON` and the `--schedule-…` options: retraining at regular times."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from zenml import Model
from zenml.config.schedule import Schedule
from zenml.exceptions import StackValidationError
from zenml.pipelines.pipeline_definition import Pipeline

from cluster import schedules
from commands.pipeline_run import REFUSALS
from commands.train import require_training
from configs.config import Config
from reports.console import say
from steps.artifact_names import MODEL_NAME
from training.errors import BadInput


def schedule_retraining(config: Config, cron: str) -> None:
    """Schedule data preparation, training, evaluation and promotion at the times of `cron`. Nothing runs now.

    Every run creates a new model version.

    Raises:
        BadInput: the same retraining is scheduled already, the cluster refuses, or a source is on this machine only.
    """
    from pipelines.retraining import retraining_pipeline

    parts = {
        "data": config.data,
        "training": require_training(config),
        "evaluation": config.evaluation,
    }
    schedule_pipeline(retraining_pipeline, parts, config, cron, model=MODEL_NAME)


def schedule_pipeline(pipeline: Pipeline, parts: dict[str, Any], config: Config, cron: str, *, model: str) -> None:
    """Schedule a pipeline with these arguments. Every run creates a new version of `model`. Raises as `schedule_retraining`."""
    identity = json.dumps(parts, sort_keys=True, default=lambda part: part.model_dump(mode="json"))
    name = f"retrain-{hashlib.sha256(identity.encode()).hexdigest()[:9]}"
    schedules.require_unscheduled(name)
    scheduled = pipeline.with_options(
        model=Model(name=model),
        settings=config.settings,
        steps=config.step_settings,
        schedule=Schedule(name=name, cron_expression=cron),
    )
    try:
        scheduled(**parts)
    except BaseException as error:  # ZenML records a schedule before the cluster accepts it
        schedules.forget(name)
        if isinstance(error, (*REFUSALS, StackValidationError)):
            raise BadInput(f"--schedule: {' '.join(str(error).split())}") from None
        raise
    say(f'scheduled: {name} "{cron}" (--schedule-list, --schedule-pause, --schedule-resume, --schedule-delete)')


def manage_schedules(pause: str | None, resume: str | None, delete: str | None) -> None:
    """Pause, resume or delete the schedule of this name; without a name, list all."""
    if pause is not None:
        set_schedule(pause, active=False)
    elif resume is not None:
        set_schedule(resume, active=True)
    elif delete is not None:
        delete_schedule(delete)
    else:
        list_schedules()


def list_schedules() -> None:
    """Print one line per schedule."""
    found = schedules.all_schedules()
    for schedule in found:
        say(f'{schedule.name}  "{schedule.cron_expression}"  {schedules.state(schedule)}')
    if not found:
        say('no schedules; `--pipeline train --schedule "0 2 * * *"` creates one')


def set_schedule(name: str, *, active: bool) -> None:
    """Pause or resume a schedule."""
    state = "active" if active else "paused"
    changed = schedules.set_active(name, active)
    say(f"schedule {name}: {state}" if changed else f"schedule {name} was {state} already")


def delete_schedule(name: str) -> None:
    """Delete a schedule."""
    schedules.delete(name)
    say(f"schedule {name}: deleted, its past runs stay")
