"""Rollouts as ART has recorded them, for people to look at: a sample of a run small enough for one page."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from training.history import StepRecord

if TYPE_CHECKING:
    import art

_STEPS, _GROUPS, _ROLLOUTS, _QUESTIONS = 12, 2, 8, 20
"""At most so many steps of a run, groups of a step, rollouts of a group, and held-out questions."""
_MAX_CHARS = 4000
"""Of one message."""
JUDGED = "judge: "
"""How the line begins that the scorer leaves in a rollout's log."""


class Turn(BaseModel):
    role: str
    content: str


class RecordedRollout(BaseModel):
    """One rollout. `metrics` and `metadata` are what the task said about it."""

    split: str
    """`train`, or `val` for held-out questions."""
    step: int
    """The step that it was played in, or whose policy it validates."""
    group: int
    reward: float
    metrics: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    explanation: str | None = None
    """Why the judge gave its score."""
    turns: list[Turn]


def sampled_for_log(groups: Sequence[art.TrajectoryGroup], share: float, *, seed: str) -> list[art.TrajectoryGroup]:
    """Return the groups with about this share of their rollouts, chosen by `seed`; groups without any are left out."""
    if share >= 1:
        return list(groups)
    import art  # seven seconds of import, which readers of recorded rollouts need not wait for

    chance = random.Random(f"log-{seed}")
    kept = [[trajectory for trajectory in group.trajectories if chance.random() < share] for group in groups]
    return [art.TrajectoryGroup(trajectories) for trajectories in kept if trajectories]


def sample_rollouts(model_dir: Path, rows: Sequence[StepRecord], best_step: int) -> list[RecordedRollout]:
    """Of the first and last steps, of steps with alerts and of some between them; validations of the first, best and last policy."""
    # A step without an update writes over the file of the one before it.
    of_file = {row.checkpoint_step: row for row in rows if row.phase == "grpo"}
    steps = sorted(of_file.values(), key=lambda row: row.step)
    alerted = [row for row in steps if row.alerts][-_STEPS // 3 :]
    chosen = {row.step for row in [*_spread(steps, _STEPS - len(alerted)), *alerted]}
    found: list[RecordedRollout] = []
    for row in steps:
        if row.step in chosen:
            found += _read(model_dir, "train", row, groups=_GROUPS)
    validated = [row for row in rows if row.validation_seconds is not None]
    shown = {validated[0].step, best_step, validated[-1].step} if validated else set()
    for row in validated:
        if row.step in shown:
            found += _read(model_dir, "val", row, groups=_QUESTIONS)
    return found


def _spread(rows: Sequence[StepRecord], count: int) -> list[StepRecord]:
    if len(rows) <= count:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]


def _read(model_dir: Path, split: str, row: StepRecord, *, groups: int) -> list[RecordedRollout]:
    import pyarrow.parquet as pq

    file = model_dir / "trajectories" / split / f"{row.checkpoint_step:04d}.parquet"
    if not file.is_file():
        return []
    columns = ["group_index", "reward", "metrics", "metadata", "logs", "messages"]
    recorded = pq.read_table(file, columns=columns, filters=[("group_index", "<", groups)]).to_pylist()
    rollouts: list[RecordedRollout] = []
    for entry in recorded:
        if sum(known.group == entry["group_index"] for known in rollouts) < _ROLLOUTS:
            rollouts.append(_rollout(split, row.step, entry))
    return rollouts


def _rollout(split: str, step: int, entry: dict[str, Any]) -> RecordedRollout:
    judged = [line.removeprefix(JUDGED) for line in entry["logs"] or [] if line.startswith(JUDGED)]
    return RecordedRollout(
        split=split,
        step=step,
        group=entry["group_index"],
        reward=entry["reward"],
        metrics=json.loads(entry["metrics"] or "{}"),
        metadata=json.loads(entry["metadata"] or "{}"),
        explanation=judged[-1] if judged else None,
        turns=[
            Turn(role=message["role"] or "", content=(message["content"] or message["tool_calls"] or "")[:_MAX_CHARS])
            for message in entry["messages"]
        ],
    )
