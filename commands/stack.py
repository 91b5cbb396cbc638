"""`--pipeline stack`: check and register a ZenML stack on Kubernetes."""

from __future__ import annotations

from zenml.client import Client

from cluster import schedules
from cluster.placement import DATA_STEPS, EVALUATION_STEPS, TRAINING_STEPS, require_steps
from cluster.preflight import StackCheck, check_stack
from cluster.stack import components_of, planned_changes, register, require_remote_stack
from cluster.zenml_settings import require_zenml_settings
from configs.config import Config
from reports.console import say
from steps.data.sources import local_sources
from training.errors import BadInput


def run_stack(config: Config, *, dry_run: bool) -> None:
    """Check the requirements of the stack and register it, or with `dry_run` print what would change.

    Raises:
        BadInput: a requirement is missing. Nothing is registered then.
    """
    settings = config.stack
    missing = []
    for check in check_stack(settings):
        say(str(check))
        if not check.ok:
            missing.append(check)
    components = components_of(settings)
    if missing and not dry_run:
        raise _not_ready(missing)
    changes = planned_changes(settings.stack_name, components) if dry_run else register(settings.stack_name, components)
    say("")
    for change in changes:
        say(str(change))
    if missing:
        raise _not_ready(missing)
    say("nothing was changed (--dry-run)" if dry_run else f"use it: zenml stack set {settings.stack_name}")


def _not_ready(missing: list[StackCheck]) -> BadInput:
    first = missing[0]
    more = f" (and {len(missing) - 1} more above)" if len(missing) > 1 else ""
    return BadInput(f"the stack cannot be registered yet, {first.name}: {first.found}: {first.remedy}{more}")


def require_cluster(config: Config, schedule: str | None) -> None:
    """Raise BadInput if the active stack cannot run the pipelines as configured, or not on that schedule."""
    require_zenml_settings(config.settings, config.step_settings)
    if schedule is not None:
        schedules.require_cron(schedule)
        schedules.require_scheduler()
    scheduled = DATA_STEPS if schedule is not None else ()
    require_steps(config.step_settings, (*scheduled, *TRAINING_STEPS, *EVALUATION_STEPS))
    require_remote_stack(config.step_settings)
    stack = Client().active_stack
    if stack.orchestrator.config.is_remote and (local := local_sources(config.data)):
        raise BadInput(
            f"{local[0]} can only be read on this machine, and stack {stack.name} runs on others: use a dataset id of the Hugging Face Hub"
        )
