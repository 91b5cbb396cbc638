"""The decisions at which a run compares single replies."""

from __future__ import annotations

from collections.abc import Sequence

from training.errors import BadInput
from training.settings import TrainerSettings
from training.task import HasDecisions, Task


def task_decisions(task: Task) -> tuple[str, ...]:
    """Return the decisions of a task; none if it has only whole episodes."""
    return tuple(task.decisions) if isinstance(task, HasDecisions) else ()


def compared_decisions(settings: TrainerSettings, own: Sequence[str], task: str) -> tuple[str, ...]:
    """Return the decisions at which a run compares replies; none if it compares whole episodes.

    `own` are the decisions of the task of this name.

    Raises:
        BadInput: the task has no such decision, or `epochs` limits the run.
    """
    wanted = settings.decisions
    if wanted is None:
        wanted = tuple(own) if settings.is_verifiable else ()
    for name in wanted:
        if name not in own:
            known = f"its decisions are {', '.join(own)}" if own else "it has none"
            raise BadInput(
                f"decisions: task {task} has no decision {name!r}: {known}; decisions=[] compares whole episodes"
            )
    if wanted and settings.epochs is not None:
        raise BadInput(
            f"epochs={settings.epochs}: a run that compares decisions asks open questions, not all in turn; leave it out, or set "
            "decisions=[]"
        )
    return tuple(name for name in own if name in wanted)
