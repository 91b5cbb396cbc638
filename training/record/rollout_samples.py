"""Read rollouts that ART recorded: a sample of a run that fits on one page."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from training.record.history import StepRecord

if TYPE_CHECKING:
    import art

_STEPS, _GROUPS, _ROLLOUTS, _QUESTIONS = 12, 2, 8, 20
"""Limits of the sample: steps of a run, groups of a step, rollouts of a group, held-out questions."""
_MAX_CHARS = 4000
"""Characters of a message."""
JUDGED = "judge: "
"""Prefix of the scorer's line in the log of a rollout."""


class Turn(BaseModel):
    role: str
    content: str


class RecordedRollout(BaseModel):
    """One rollout, with the metrics and metadata of the task."""

    split: str
    """`train`, or `val` for held-out questions."""
    step: int
    """The step that it belongs to, or after which it validates the policy."""
    group: int
    reward: float
    metrics: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    explanation: str | None = None
    """The judge's reason for its score."""
    turns: list[Turn]


def sampled_for_log(groups: Sequence[art.TrajectoryGroup], share: float, *, seed: str) -> list[art.TrajectoryGroup]:
    """Return about this share of the rollouts of each group, chosen by `seed`, without empty groups."""
    if share >= 1:
        return list(groups)
    import art  # takes seven seconds to import, and readers of recorded rollouts do not need it

    chance = random.Random(f"log-{seed}")
    kept = [[trajectory for trajectory in group.trajectories if chance.random() < share] for group in groups]
    return [art.TrajectoryGroup(trajectories) for trajectories in kept if trajectories]


def sample_rollouts(model_dir: Path, rows: Sequence[StepRecord], best_step: int) -> list[RecordedRollout]:
    """Read a sample: the first and last steps, steps with alerts, some in between, and validations of the first, best and last policy."""
    # A step without an update overwrites the file of the previous step.
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
