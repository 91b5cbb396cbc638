"""Schedules of the training pipeline: which expressions a cluster accepts, and looking after the ones that exist."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TypeVar

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

MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
FIELDS = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(MONTHS, start=1)}),
    ("day of week", 0, 6, {name: number for number, name in enumerate(DAYS)}),
)
"""Name, smallest and largest value, and names of values of each field: what a Kubernetes CronJob accepts."""


def require_cron(expression: str) -> None:
    """Raises BadInput unless a Kubernetes CronJob accepts the expression.

    That is five fields or one of `MACROS`; no seconds, no years, and Sunday is 0 only.
    """
    if expression in MACROS:
        return
    fields = expression.split()
    if len(fields) != len(FIELDS):
        raise BadInput(
            f'--schedule "{expression}": five fields are needed (minute hour day-of-month month day-of-week), '
            f'not {len(fields)}; every night at two is "0 2 * * *"'
        )
    for text, (name, low, high, names) in zip(fields, FIELDS, strict=True):
        for part in text.split(","):
            if not _is_range(part.lower(), low, high, names):
                words = f" or {'-'.join((min(names, key=names.get), max(names, key=names.get)))}" if names else ""
                raise BadInput(
                    f'--schedule "{expression}": {part!r} is no {name} ({low}-{high}{words}, *, ranges, /steps)'
                )


def _is_range(part: str, low: int, high: int, names: dict[str, int]) -> bool:
    """Whether `part` is `*`, a value, or a range of ascending values, each with an optional step."""
    found = re.fullmatch(r"(?:[*?]|(\w+)(?:-(\w+))?)(?:/(\d+))?", part, re.ASCII)
    if found is None or (found[3] is not None and int(found[3]) == 0):
        return False
    if found[1] is None:
        return True
    ends = [names.get(word, int(word) if word.isdigit() else -1) for word in (found[1], found[2] or found[1])]
    return low <= ends[0] <= ends[1] <= high


def require_scheduler() -> None:
    """Raises BadInput unless the active stack's orchestrator can run on a schedule."""
    stack = Client().active_stack_model
    orchestrator = Client().active_stack.orchestrator
    if not orchestrator.config.is_schedulable:
        raise BadInput(
            f"--schedule: orchestrator {orchestrator.name} of stack {stack.name} cannot schedule; "
            "`zenml stack set NAME` (`run.py --pipeline stack` registers one that can)"
        )


def require_unscheduled(name: str) -> None:
    """Raises BadInput when there is a schedule of that name: a second one would start the same training beside it."""
    if existing := Client().list_schedules(name=name).items:
        raise BadInput(
            f'--schedule: {name} exists already ("{existing[0].cron_expression}"); `--schedule-delete {name}` first'
        )


def all_schedules() -> list[ScheduleResponse]:
    """Every schedule, oldest first; deleted ones are not among them."""
    client, found, page = Client(), [], 1
    while True:
        answer = client.list_schedules(page=page, hydrate=True)
        found += answer.items
        if page >= answer.total_pages:
            return found
        page += 1


def set_active(name: str, active: bool) -> bool:
    """Pauses or resumes a schedule in the cluster; a run that is under way goes on. False when it was so already.

    ZenML keeps the schedule as active: its server rejects the token of an inactive schedule, which a run under way uses.

    Raises:
        BadInput: there is no such schedule, its orchestrator cannot, or the cluster does not let us.
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
    """Deletes a schedule, in the cluster first; its past runs stay. Raises BadInput as `set_active` does."""
    schedule = _find(name)
    _in_cluster(name, lambda: Client().delete_schedule(schedule.id))


def forget(name: str) -> None:
    """Removes what is left in ZenML of a schedule that the cluster did not take; nothing if it never got that far."""
    for schedule in Client().list_schedules(name=name).items:
        Client().delete_schedule(schedule.id, soft=False)


def _find(name: str) -> ScheduleResponse:
    try:
        return Client().get_schedule(name, allow_name_prefix_match=False)
    except KeyError:
        raise BadInput(f"there is no schedule {name}; `--schedule-list` shows them") from None


def _orchestrator(schedule: ScheduleResponse) -> ResilientOrchestrator:
    """Raises BadInput when the schedule's orchestrator is gone, or is one that we cannot ask."""
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
    except RuntimeError as error:  # no CronJob is known for it
        raise BadInput(f"schedule {name}: {error}") from None
