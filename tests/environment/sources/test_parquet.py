from __future__ import annotations

import operator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environment.email_db import build_database
from environment.errors import BadMail
from environment.models import Email
from environment.sources.parquet import has_split, parquet_emails, parquet_questions

EMAIL_SCHEMA = pa.schema(
    {
        "message_id": pa.string(),
        "subject": pa.string(),
        "from": pa.string(),
        "to": pa.list_(pa.string()),
        "cc": pa.list_(pa.string()),
        "bcc": pa.list_(pa.string()),
        "date": pa.timestamp("us"),
        "body": pa.string(),
        "file_name": pa.string(),
    }
)
ROW: dict[str, Any] = {
    "message_id": "<1@thyme>",
    "subject": "News",
    "from": "Ann@enron.com",
    "to": ["bob@enron.com", "josey'.'scott@enron.com"],
    "cc": [],
    "bcc": [],
    "date": datetime(2001, 10, 29, 14, 8, 7),
    "body": "\n\nPlease submit your news.",
    "file_name": "allen-p/inbox",
}
QUESTION: dict[str, Any] = {
    "id": 39562,
    "question": "When?",
    "answer": "Monday",
    "message_ids": ["<1@thyme>"],
    "how_realistic": 0.85,
    "inbox_address": "bob@enron.com",
    "query_date": "2001-11-13",
}


def write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def test_rows_become_mails(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [ROW], EMAIL_SCHEMA)
    emails = parquet_emails(tmp_path)
    expected = Email(
        message_id="<1@thyme>",
        subject="News",
        from_address="Ann@enron.com",
        to_addresses=("bob@enron.com", "josey'.'scott@enron.com"),
        date=datetime(2001, 10, 29, 14, 8, 7),
        body="\n\nPlease submit your news.",
        file_name="allen-p/inbox",
    )
    assert list(emails) == [expected] == list(emails), "the source can be read again"
    assert operator.length_hint(emails) == 1


def test_empty_fields_and_impossible_dates_are_tolerated(tmp_path: Path) -> None:
    seconds = pa.schema(
        [field.with_type(pa.timestamp("s")) if field.name == "date" else field for field in EMAIL_SCHEMA]
    )
    empty = dict.fromkeys(ROW)
    table = pa.Table.from_pylist([empty | {"message_id": "<2>"}, ROW, ROW], schema=seconds)
    far = pa.array([None, 10**11, -(10**11)], pa.int64()).cast(pa.timestamp("s"))
    pq.write_table(table.set_column(6, "date", far), tmp_path / "train.parquet", version="2.6", coerce_timestamps="us")
    emails = list(parquet_emails(tmp_path))
    assert emails[0] == Email(message_id="<2>")
    assert [email.date for email in emails[1:]] == [datetime(5138, 11, 16, 9, 46, 40), None]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_may_be_days(tmp_path: Path, kind: pa.DataType) -> None:
    day = 86_400_000 if kind == pa.date64() else 1  # date64 counts milliseconds
    table = pa.Table.from_pylist([ROW] * 3, schema=EMAIL_SCHEMA)
    days = pa.array([11_624 * day, 10_000_000 * day, None], type=kind)  # the second is in the year 29349
    pq.write_table(table.set_column(6, "date", days), tmp_path / "train.parquet")
    assert [email.date for email in parquet_emails(tmp_path)] == [datetime(2001, 10, 29), None, None]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2001-10-29 14:08:07", datetime(2001, 10, 29, 14, 8, 7)),
        ("2001-10-29T14:08:07+02:00", datetime(2001, 10, 29, 12, 8, 7)),
        ("soon", None),
    ],
)
def test_dates_and_addresses_may_be_text(tmp_path: Path, value: str, expected: datetime | None) -> None:
    write(tmp_path / "mails.parquet", [ROW | {"date": value, "to": "a@x.example, b@x.example", "cc": "", "bcc": None}])
    (email,) = parquet_emails(tmp_path / "mails.parquet")
    assert email.date == expected
    assert email.to_addresses == ("a@x.example", "b@x.example") and email.cc_addresses == email.bcc_addresses == ()


def test_a_source_with_dirt_can_be_built(tmp_path: Path) -> None:
    rows = [
        ROW,
        dict.fromkeys(ROW),
        ROW | {"message_id": "<2>", "date": None},
        ROW | {"message_id": "<3>", "body": None},
    ]
    write(tmp_path / "train-00000-of-00001.parquet", rows, EMAIL_SCHEMA)
    report = build_database(parquet_emails(tmp_path), tmp_path / "mails.sqlite")
    assert report.kept == 1 and report.dropped == {"no_body": 2, "no_date": 1}


def test_the_same_rows_as_the_datasets_library_reads(tmp_path: Path) -> None:
    rows = [ROW | {"message_id": f"<{n}>"} for n in range(2_000)]
    write(tmp_path / "a" / "train.parquet", rows, EMAIL_SCHEMA)
    ours = [email.message_id for email in parquet_emails(tmp_path / "a")]
    theirs = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "a" / "train.parquet"), split="train", streaming=True
    )
    assert ours == [row["message_id"] for row in theirs]


def test_questions_and_their_splits(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train-00000-of-00001.parquet", [QUESTION])
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [QUESTION | {"id": 7}])
    assert [question.id for question in parquet_questions(tmp_path)] == ["39562"]
    assert [question.id for question in parquet_questions(tmp_path, "test")] == ["7"]
    assert has_split(tmp_path, "test") and not has_split(tmp_path / "data" / "train-00000-of-00001.parquet", "test")


def test_no_mail_is_left_out_for_the_name_of_its_file(tmp_path: Path) -> None:
    names = ("2024.parquet", "test-results.parquet", "validation/a.parquet")
    for name in names:
        write(tmp_path / name, [ROW | {"message_id": name}], EMAIL_SCHEMA)
    assert [email.message_id for email in parquet_emails(tmp_path)] == list(names)
    assert [email.message_id for email in parquet_emails(tmp_path / names[1])] == [names[1]]


def one_line_of(*arguments: Any) -> str:
    with pytest.raises(BadMail) as caught:
        list(parquet_questions(*arguments) if arguments[1:] else parquet_emails(*arguments))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_problems_of_a_source_are_one_line(tmp_path: Path) -> None:
    assert "'data/enron/emails' does not exist" in one_line_of("data/enron/emails")
    assert "does not exist" in one_line_of("")
    (tmp_path / "empty").mkdir()
    assert f"no .parquet file in {tmp_path / 'empty'}" in one_line_of(tmp_path / "empty")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    assert "torn.parquet is not a readable parquet file" in one_line_of(tmp_path / "torn.parquet")
    few = write(
        tmp_path / "few.parquet", [{"message_id": "<1>", "subject": "x", "from": "a", "to": ["b"], "cc": ["c"]}]
    )
    assert one_line_of(few) == f"{few} lacks the columns bcc, date, body"
    assert "lacks the columns question, answer" in one_line_of(write(tmp_path / "q.parquet", [{"id": 1}]), "train")
    train = write(tmp_path / "q" / "train.parquet", [QUESTION, QUESTION | {"id": None}])
    assert "has no 'test' split" in one_line_of(train.parent, "test")
    assert f"question 2 of {train}: column 'id'" in one_line_of(train, "train")
    wrong = write(tmp_path / "wrong.parquet", [QUESTION | {"message_ids": "<1@thyme>"}])
    assert "column 'message_ids'" in one_line_of(wrong, "train")


def test_a_truncated_file_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", [ROW | {"body": f"{n} " * 200} for n in range(3_000)], EMAIL_SCHEMA)
    content = bytearray(path.read_bytes())
    content[1_000 : len(content) // 2] = b"\xff" * (len(content) // 2 - 1_000)
    path.write_bytes(bytes(content))
    assert "cannot be read to its end" in one_line_of(path)


def test_a_hub_dataset_is_streamed_and_a_missing_one_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, **options: object) -> list[dict[str, Any]]:
        assert (name, options) == ("someone/mails", {"split": "train", "streaming": True})
        return rows

    rows = [ROW]
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [email.message_id for email in parquet_emails("someone/mails")] == ["<1@thyme>"]
    assert operator.length_hint(parquet_emails("someone/mails")) == 0
    rows = [{"text": "x"}]
    assert one_line_of("someone/mails").startswith("someone/mails lacks the columns message_id, subject")

    def offline(name: str, **options: object) -> None:
        raise ConnectionError("Couldn't reach the Hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert one_line_of("someone/mails") == (
        "someone/mails is neither a folder here nor a dataset that could be fetched from the Hub (Couldn't reach the Hub)"
    )


def test_empty_fields_of_a_question_stop_no_other_question(tmp_path: Path) -> None:
    empty = [QUESTION | {"id": number, name: None} for number, name in enumerate(QUESTION) if name != "id"]
    dated = QUESTION | {"id": 99, "query_date": date(2001, 5, 4)}
    write(tmp_path / "a" / "train.parquet", [QUESTION, *empty])
    write(tmp_path / "b" / "train.parquet", [dated])
    found = list(parquet_questions(tmp_path / "a"))
    assert len(found) == 1 + len(empty) and found[1].question == "" and found[3].message_ids == ()
    assert [question.query_date for question in parquet_questions(tmp_path / "b")] == ["2001-05-04"]
