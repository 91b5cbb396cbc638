"""Weights & Biases without its servers: the rows of a run end up in its file."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from training.record.experiment import Experiment
from training.record.history import StepRecord
from training.record.progress import Progress
from training.record.wandb_log import logs_to_wandb, with_wandb

pytestmark = pytest.mark.service


class RecordedProgress(Progress):
    def __init__(self) -> None:
        self.rows: list[StepRecord] = []

    def step(self, row: StepRecord) -> None:
        self.rows.append(row)


EXPERIMENT = Experiment(
    name="first",
    run="r0123456789",
    config={"max_steps": 2},
    git_revision="abc",
    base_model="owner/model",
    base_model_checksum="0" * 64,
    created=datetime(2026, 11, 21, tzinfo=UTC),
)


def test_offline_rows_are_in_the_runs_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    recorded = RecordedProgress()
    with with_wandb(recorded, EXPERIMENT, tmp_path) as progress:
        for step in (1, 2):
            progress.step(
                StepRecord(step=step, phase="grpo", checkpoint_step=step, seconds=1.0, reward=0.123456 * step)
            )
    assert [row.step for row in recorded.rows] == [1, 2]

    [file] = tmp_path.rglob("*.wandb")
    assert "r0123456789" in file.name
    deadline = time.monotonic() + 300
    while b"0.246912" not in (written := file.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)  # wandb's own process writes, on a busy machine a moment after the run was finished
    for word in (
        "reward",
        "0.123456",
        "0.246912",
        "max_steps",
        "git_revision",
        "first",
        "config_hash",
        EXPERIMENT.config_hash,
    ):
        assert word.encode() in written, word


def test_without_a_key_nothing_is_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    recorded = RecordedProgress()
    for mode in ("disabled", "online"):
        monkeypatch.setenv("WANDB_MODE", mode)
        assert not logs_to_wandb()
        with with_wandb(recorded, EXPERIMENT, tmp_path) as progress:
            assert progress is recorded
    monkeypatch.setenv("WANDB_API_KEY", "mine")
    assert logs_to_wandb()
