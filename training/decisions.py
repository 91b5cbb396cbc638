"""The decisions at which a run compares single replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from training.errors import BadInput
from training.task import HasDecisions, Task

if TYPE_CHECKING:
    from training.settings import TrainerSettings


class DecisionSettings(BaseModel):
    """Where replies are compared, how they are rewarded, and which questions are asked."""

    model_config = ConfigDict(frozen=True)

    decisions: tuple[str, ...] | None = Field(
        default=None,
        description="learn from single replies at these decisions of an episode instead of from whole episodes, for example "
        "query,open,answer; null: all that the task has, if scoring=verifiable; []: whole episodes",
    )
    decision_reward: Literal["immediate", "continued"] = Field(
        default="immediate",
        description="reward of a reply at a decision: what it achieves at once, or that of the episode when the policy "
        "finishes it greedily",
    )
    episode_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="with decisions: share of a step's questions that are played as whole episodes",
    )
    open_share: float = Field(
        default=0.75,
        ge=0,
        le=1,
        description="with decisions: share of a step's questions that the policy did not solve when it was last asked, or "
        "that are likely to be hard; 0: any",
    )


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
