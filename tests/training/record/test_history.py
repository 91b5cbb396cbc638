"""What of a history file is read after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.errors import BadInput
from training.record.history import StepRecord, append_row, read_history


def row(step: int) -> StepRecord:
    return StepRecord(step=step, phase="grpo", checkpoint_step=step, seconds=1.0, warnings=["the user's words: é"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for step in (1, 2):
        append_row(tmp_path / "history.jsonl", row(step))
    return tmp_path / "history.jsonl"


def test_a_last_line_torn_at_any_byte_is_ignored(file: Path) -> None:
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        file.write_bytes(whole[:end])
        assert read_history(file) == [row(1)], whole[:end]


def test_a_damaged_line_before_the_last_is_bad_input(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace("é".encode(), "é".encode()[:1], 1))
    with pytest.raises(BadInput, match="line 1: not a history row"):
        read_history(file)
