"""Questions survive a round trip through parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from environment.errors import BadMail
from environment.question_table import write_question_table
from environment.sources.parquet import Question, has_split, parquet_questions

ROWS = [
    Question(
        id=f"q{number}",
        question="Wo ist der Schlüssel?",
        answer="42",
        message_ids=("<1@example.com>", "<2@example.com>")[:number],
        how_realistic=0.5,
        inbox_address="ann.lee@example.com",
        query_date="2001-05-15T09:30:00",
    )
    for number in (1, 2)
]


def test_a_written_table_can_be_read(tmp_path: Path) -> None:
    folder = write_question_table(ROWS, tmp_path / "new" / "questions")
    assert list(parquet_questions(folder)) == ROWS
    assert has_split(folder, "train") and not has_split(folder, "test")
    assert list(folder.parent.iterdir()) == [folder]
    assert pq.read_schema(folder / "train.parquet").names == list(Question.model_fields)


def test_an_earlier_table_is_replaced(tmp_path: Path) -> None:
    write_question_table(ROWS, tmp_path / "questions")
    write_question_table(ROWS[:1], tmp_path / "questions")
    assert list(parquet_questions(tmp_path / "questions")) == ROWS[:1]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadMail, match="cannot write the questions"):
        write_question_table(ROWS, tmp_path / "file" / "questions")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
