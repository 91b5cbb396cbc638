"""Setting up a cluster and looking after its schedules: what is asked, what is changed, and what the user is told about it."""

from __future__ import annotations

from zenml.client import Client

from cluster import schedules
from cluster.preflight import Check, preflight
from cluster.stack import components_of, plan, register, require_remote_stack
from configs.schema import Config, DataConfig, StackConfig, section
from reports.console import say
from steps.data.sources import local_sources
from training.errors import BadInput


def run_stack(config: Config, *, dry_run: bool) -> None:
    """Checks what the stack needs and registers it, or says what registering would do.

    Raises:
        BadInput: something is missing; then nothing is registered.
    """
    settings = section(config, StackConfig)
    missing = []
    for check in preflight(settings):
        say(str(check))
        if not check.ok:
            missing.append(check)
    components = components_of(settings)
    if missing and not dry_run:
        raise _not_ready(missing)
    changes = plan(settings.stack_name, components) if dry_run else register(settings.stack_name, components)
    say("")
    for change in changes:
        say(str(change))
    if missing:
        raise _not_ready(missing)
    say("nothing was changed (--dry-run)" if dry_run else f"use it: zenml stack set {settings.stack_name}")


def _not_ready(missing: list[Check]) -> BadInput:
    first = missing[0]
    more = f" (and {len(missing) - 1} more above)" if len(missing) > 1 else ""
    return BadInput(f"the stack cannot be registered yet, {first.name}: {first.found}: {first.remedy}{more}")


def require_cluster(config: Config, schedule: str | None) -> None:
    """Raises BadInput when the active stack cannot run the pipelines as configured, or not on that schedule."""
    if schedule is not None:
        schedules.require_cron(schedule)
        schedules.require_scheduler()
    require_remote_stack(config.step_settings)
    stack = Client().active_stack
    if stack.orchestrator.config.is_remote and (local := local_sources(section(config, DataConfig))):
        raise BadInput(
            f"{local[0]} is on this machine, and stack {stack.name} runs on others: use a dataset id of the Hugging Face Hub"
        )


def list_schedules() -> None:
    """One line per schedule."""
    found = schedules.all_schedules()
    for schedule in found:
        say(f'{schedule.name}  "{schedule.cron_expression}"  {schedules.state(schedule)}')
    if not found:
        say('no schedules; `--pipeline train --schedule "0 2 * * *"` creates one')


def set_schedule(name: str, *, active: bool) -> None:
    """Pauses or resumes a schedule."""
    state = "active" if active else "paused"
    changed = schedules.set_active(name, active)
    say(f"schedule {name}: {state}" if changed else f"schedule {name} was {state} already")


def delete_schedule(name: str) -> None:
    """Deletes a schedule."""
    schedules.delete(name)
    say(f"schedule {name}: deleted, its past runs stay")
