"""The history of a run: one row per finished step. The history file is the state of the run.

A step is finished when its row is on disk. Resuming removes whatever a killed run left after its last complete row,
such as a checkpoint or a torn line, and repeats the step. Rows whose checkpoint was damaged later are removed too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from training.errors import BadInput
from training.files import write_text

HISTORY_FILE = "training_history.jsonl"
CHECKPOINTS = "checkpoints"
UNTOUCHED = "untouched"
"""Phase of step 0 in a run that validates the base model before it trains."""
CONTINUED = "continued"
"""Phase of step 0 in a run that continues from an earlier run's adapter."""


class Example(BaseModel):
    """A trajectory that illustrates an alert, with the id and the question of its scenario."""

    scenario_id: str
    question: str
    reward: float


class Alert(BaseModel):
    """A suspicious trend or habit: its documented name, a sentence with the figures, and examples."""

    name: str
    sentence: str
    examples: list[Example]


class AskedQuestion(BaseModel):
    """A question of a GRPO step, and the results of one of its groups."""

    index: int
    """Position among the run's train questions, whose order is fixed."""
    kind: str | None = None
    decision: str | None = None
    """The decision whose replies were compared; `None` for whole episodes."""
    rollouts: int
    """Scored rollouts or replies; 0 if the group was dropped, or the episode had no decision."""
    right: int | None = None
    """Correct rollouts, or replies that were the right move; `None` when the task does not say what is correct."""
    reward_std: float = 0.0
    replaces: bool = False
    """Whether it replaces a group without reward spread."""


class DecisionFigures(BaseModel):
    """The groups of a step at one decision."""

    groups: int
    with_spread: int
    """Groups that the update learns from."""
    right: float
    """Share of the first `probe_rollouts` replies of each group that were the right move."""


class StepRecord(BaseModel):
    """One row of the history.

    Times are seconds. `reward` and `accuracy` are means over the questions, of their first `probe_rollouts` each; `turns` is
    the mean over all rollouts.
    """

    model_config = ConfigDict(extra="allow")

    step: int
    phase: str
    checkpoint_step: int
    checkpoint_digest: str | None = None
    """sha256 of the checkpoint's files; `None` where the backend keeps them elsewhere."""
    seconds: float
    """Wall time that this step added to the run, without work done ahead."""
    reward: float | None = None
    reward_std: float | None = None
    """Mean over groups of the standard deviation of rewards within the group. Groups without spread teach nothing."""
    reward_error: float | None = None
    """Standard error of `reward`, from the spread between questions."""
    reward_right: float | None = None
    reward_wrong: float | None = None
    """Mean reward of the rollouts that were correct, and of those that were not."""
    reward_highest: float | None = None
    reward_highest_share: float | None = None
    """Highest reward of the first `probe_rollouts` of each question, and the share of them that got it."""
    accuracy: float | None = None
    turns: float | None = None
    questions: list[AskedQuestion] = Field(default_factory=list)
    decisions: dict[str, DecisionFigures] = Field(default_factory=dict)
    """Decision -> its figures, in a run that compares single replies. Then `reward` and `accuracy` are means over replies at
    decisions, `turns` is the turn of the reply, and a rollout is a reply."""
    groups_trained: int = 0
    groups_replaced: int = 0
    """Groups asked in place of groups without spread (`max_extra_groups`)."""
    rollouts_sampled: int = 0
    rollouts_trained: int = 0
    """Finished rollouts of the step, and how many of them the update used."""
    groups_dropped: int = 0
    """Groups without rewards: fewer than two finished rollouts, or no usable reply from the judge."""
    off_policy_steps: int = 0
    """Off-policy lag of the oldest group, in optimizer steps."""
    rollout_errors: int = 0
    rollouts_too_long: int = 0
    """Rollouts of more than `max_context` tokens, which updates ignore."""
    judge_requests: int = 0
    judge_cached: int = 0
    """Groups whose scores came from the judge's cache."""
    judge_seconds: float | None = None
    """Mean per request."""
    judge_cost: float | None = None
    """US dollars, as far as the judge's price is known."""
    gpu_hours: float | None = None
    """Hours of this step times the GPUs that the run occupies; None without a GPU."""
    gpu_cost: float | None = None
    """US dollars at `gpu_price`."""
    sampled_tokens: int = 0
    tokens_per_rollout: float | None = None
    entropy: float | None = None
    """Nats per sampled token, estimated by the mean of their negative log-probabilities."""
    distinct_call_sequences: float | None = None
    """Mean over groups of the number of different tool-call sequences among their rollouts: 1 when all do the same."""
    tokens_per_second: float | None = None
    """Sampled tokens per second of rollout time."""
    rollout_seconds: float | None = None
    """From the start of gathering, which may precede the step, to the last score."""
    update_seconds: float | None = None
    alerts: list[Alert] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    """Problems that did not end the run: failed rollouts, hanging calls, damaged checkpoints."""
    validation_accuracy: float | None = None
    validation_reward: float | None = None
    """Means over the held-out questions, decoded greedily; `None` for steps that were not validated."""
    validation_win_rate: float | None = None
    """Share of comparisons with the initial policy that the judge decided for this one; a tie counts half."""
    validation_errors: int = 0
    validation_tokens: int = 0
    validation_seconds: float | None = None
    """Part of `seconds`."""


def read_history(path: Path) -> list[StepRecord]:
    """Return the complete rows of a history file, in order. Ignores a torn last line of a killed run.

    Raises:
        BadInput: a line before the last cannot be read, or the steps have a gap.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")  # a torn line may end within a character
    rows: list[StepRecord] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(StepRecord.model_validate_json(line))
        except ValueError as error:
            raise BadInput(f"{path}, line {number}: not a history row; remove the run folder to start again") from error
    if [row.step for row in rows] != list(range(rows[0].step, rows[0].step + len(rows)) if rows else []):
        raise BadInput(f"{path}: steps have a gap or repeat; remove the run folder to start again")
    return rows


def append_row(path: Path, row: StepRecord) -> None:
    """Write a row to disk. When this returns, the step is finished."""
    with path.open("a", encoding="utf-8") as file:
        file.write(row.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def checkpoint_folder(model_dir: Path, checkpoint_step: int) -> Path:
    """Return the folder in which ART keeps a checkpoint."""
    return model_dir / CHECKPOINTS / f"{checkpoint_step:04d}"


def copy_adapter(source: Path, target: Path) -> None:
    """Copy the files of an adapter, all or nothing. Replaces what an interrupted copy left."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, partial)
    os.replace(partial, target)


def checkpoint_digest(folder: Path) -> str | None:
    """Return the sha256 over the names and contents of a checkpoint's files; `None` if the folder is missing."""
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def is_intact(model_dir: Path, row: StepRecord) -> bool:
    """Return whether the checkpoint of a row is unchanged since the row was written."""
    if row.checkpoint_digest is None:
        return True
    return checkpoint_digest(checkpoint_folder(model_dir, row.checkpoint_step)) == row.checkpoint_digest


def without_damaged_end(model_dir: Path, rows: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the rows up to the last one with an intact checkpoint; none if there is no such row."""
    kept = list(rows)
    while kept and not is_intact(model_dir, kept[-1]):
        kept.pop()
    return kept


def rewind(model_dir: Path, rows: Sequence[StepRecord]) -> None:
    """Remove what is newer than these rows: checkpoints, complete or not, torn lines, and rows of ART's own history."""
    last = rows[-1].checkpoint_step if rows else 0
    for entry in (model_dir / CHECKPOINTS).glob("*"):
        if entry.is_dir() and not (entry.name.isdigit() and int(entry.name) <= last):
            shutil.rmtree(entry)
    _rewrite(model_dir / HISTORY_FILE, (row.model_dump_json() for row in rows))
    _rewrite(model_dir / "history.jsonl", _rows_up_to(model_dir / "history.jsonl", last))


def _rewrite(path: Path, lines: Iterable[str]) -> None:
    if path.exists():
        write_text(path, "".join(f"{line}\n" for line in lines))


def _rows_up_to(path: Path, checkpoint_step: int) -> list[str]:
    kept = []
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            if json.loads(line).get("step", 0) <= checkpoint_step:
                kept.append(line.decode())
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue  # a torn line of a killed run
    return kept
