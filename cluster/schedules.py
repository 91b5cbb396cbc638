"""Schedules of the training pipeline: validate cron expressions, and list, pause, resume and delete schedules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from croniter import CroniterError, croniter
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError
from zenml.client import Client
from zenml.enums import StackComponentType
from zenml.models import ScheduleResponse, ScheduleUpdate
from zenml.stack import StackComponent

from cluster.flavors import ResilientOrchestrator
from training.errors import BadInput

Changed = TypeVar("Changed")


def require_cron(expression: str) -> None:
    """Raise BadInput unless the expression has five fields that croniter accepts, or is a macro such as `@daily`.

    croniter accepts a few expressions that Kubernetes refuses, for example 7 as Sunday. The cluster reports those when the
    schedule is created.
    """
    problem = "" if len(expression.split()) == 5 or expression.startswith("@") else "it does not have five fields"
    try:
        croniter.expand(expression)
    except CroniterError as error:
        problem = problem or str(error)
    if problem:
        raise BadInput(
            f'--schedule "{expression}": {problem}; five fields are needed (minute hour day-of-month month '
            'day-of-week): every night at two is "0 2 * * *"'
        )


def require_scheduler() -> None:
    """Raise BadInput unless the active stack's orchestrator supports schedules."""
    stack = Client().active_stack_model
    orchestrator = Client().active_stack.orchestrator
    if not orchestrator.config.is_schedulable:
        raise BadInput(
            f"--schedule: orchestrator {orchestrator.name} of stack {stack.name} cannot run schedules; "
            "`zenml stack set NAME` (`python run.py --pipeline stack` registers one that can)"
        )


def require_unscheduled(name: str) -> None:
    """Raise BadInput if a schedule of that name exists, because a second one would duplicate the training."""
    if existing := Client().list_schedules(name=name).items:
        raise BadInput(
            f'--schedule: {name} exists already ("{existing[0].cron_expression}"); `--schedule-delete {name}` first'
        )


def all_schedules() -> list[ScheduleResponse]:
    """Return every schedule that is not deleted, oldest first."""
    client, found, page = Client(), [], 1
    while True:
        answer = client.list_schedules(page=page, hydrate=True)
        found += answer.items
        if page >= answer.total_pages:
            return found
        page += 1


def set_active(name: str, active: bool) -> bool:
    """Pause or resume a schedule in the cluster. Active runs continue. Return False if nothing had to change.

    In ZenML the schedule stays active, because its server rejects the token of an inactive schedule, which active runs use.

    Raises:
        BadInput: there is no such schedule, its orchestrator does not support this, or the cluster refuses.
    """
    schedule = _find(name)
    orchestrator = _orchestrator(schedule)

    def change() -> bool:
        cron_job = orchestrator.cron_job(schedule)
        if cron_job is None:
            raise RuntimeError(f"its CronJob is gone; `--schedule-delete {name}`")
        if schedule.active and active != bool(cron_job.spec.suspend):
            return False
        if active and not schedule.active:  # made inactive by ZenML's own command
            Client().update_schedule(schedule.id, active=True)
        else:
            orchestrator.update_schedule(schedule, ScheduleUpdate(active=active))
        return True

    return _in_cluster(name, change)


def state(schedule: ScheduleResponse) -> str:
    """Return `active`, `paused`, or why neither is known."""
    try:
        orchestrator = _orchestrator(schedule)
        cron_job = _in_cluster(schedule.name, lambda: orchestrator.cron_job(schedule))
    except BadInput as error:
        return f"unknown ({error})"
    if cron_job is None:
        return "gone from the cluster"
    return "active" if schedule.active and not cron_job.spec.suspend else "paused"


def delete(name: str) -> None:
    """Delete a schedule, in the cluster first. Past runs stay. Raises BadInput as `set_active` does."""
    schedule = _find(name)
    _in_cluster(name, lambda: Client().delete_schedule(schedule.id))


def forget(name: str) -> None:
    """Remove ZenML's record, if any, of a schedule that the cluster refused."""
    for schedule in Client().list_schedules(name=name).items:
        Client().delete_schedule(schedule.id, soft=False)


def _find(name: str) -> ScheduleResponse:
    try:
        return Client().get_schedule(name, allow_name_prefix_match=False)
    except KeyError:
        raise BadInput(f"there is no schedule {name}; `--schedule-list` shows them") from None


def _orchestrator(schedule: ScheduleResponse) -> ResilientOrchestrator:
    """Return the orchestrator of a schedule. Raises BadInput if it is gone or of another flavor."""
    with contextlib.suppress(KeyError):
        if schedule.orchestrator_id is not None:
            model = Client().get_stack_component(StackComponentType.ORCHESTRATOR, schedule.orchestrator_id)
            orchestrator = StackComponent.from_model(model)
            if isinstance(orchestrator, ResilientOrchestrator):
                return orchestrator
    raise BadInput(
        f"schedule {schedule.name}: its orchestrator is gone or cannot pause and resume; `--schedule-delete {schedule.name}`"
    )


def _in_cluster(name: str, change: Callable[[], Changed]) -> Changed:
    try:
        return change()
    except ApiException as error:
        raise BadInput(f"schedule {name}: the cluster answers {error.status} {error.reason}") from None
    except (ConfigException, HTTPError) as error:
        raise BadInput(
            f"schedule {name}: the cluster cannot be reached ({' '.join(str(error).split())[:160]})"
        ) from None
    except RuntimeError as error:  # it has no recorded CronJob
        raise BadInput(f"schedule {name}: {error}") from None
