from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environment.email_db import MailDatabase
from environment.errors import BadMail
from environment.models import Email, Scenario
from environment.scenarios import check_scenarios, load_scenarios, open_scenario
from tests.environment.sample_mails import OWNER, STRANGER, mail

load = partial(load_scenarios, max_messages=1, held_out_fraction=0.2, seed=42)


@pytest.fixture
def database(database_of: Callable[[Iterable[Email]], MailDatabase]) -> MailDatabase:
    """Mails 1 to 300 are the owner's, one a day from 2001 on; 301 is a later copy of 1, 302 is someone else's."""
    mails = [mail(n, date=datetime(2001, 1 + n // 28, 1 + n % 28, 12)) for n in range(1, 301)]
    copy = mails[0].model_copy(update={"message_id": "<301@example.com>", "date": datetime(2002, 1, 1)})
    return database_of([*mails, copy, mail(302, to_addresses=(STRANGER,))])


def question(number: int, **fields: Any) -> dict[str, Any]:
    defaults = {
        "id": number,
        "question": f"What is in note {number}?",
        "answer": f"Number {number}",
        "message_ids": [f"<{number}@example.com>"],
        "how_realistic": 0.9,
        "inbox_address": OWNER.upper(),
        "query_date": "2002-06-01",
    }
    return defaults | fields


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_every_reason_to_drop_a_question_is_counted(tmp_path: Path, database: MailDatabase) -> None:
    train = write(
        tmp_path / "train.parquet",
        [
            question(1, message_ids=["<301@example.com>", "<1@example.com>"]),
            question(2, message_ids=["<2@example.com>", "<3@example.com>"]),
            question(49, inbox_address="ann@Enron.com"),
            question(5, how_realistic=0.2),
            question(6, message_ids=["<nowhere@example.com>"]),
            question(7, message_ids=["<302@example.com>"]),
            question(8, query_date="2001-01-08"),
            question(9, query_date="2001-01-10"),
            question(10, query_date="last week"),
            question(11, message_ids=[]),
            question(12, answer="  "),
            question(13, inbox_address="nobody@example.com"),
            question(1),
        ],
    )
    test = write(tmp_path / "test.parquet", [question(100), question(101, inbox_address="ann@enron.com")])
    report = load(train, test, database, min_realism=0.5)
    assert report.read == 15 == len(report.scenarios) + sum(map(len, report.dropped_ids.values()))
    assert report.dropped_ids["excluded_id"] == ["49", "101"] and report.dropped_ids["unrealistic"] == ["5"]
    assert report.dropped == {
        "excluded_id": 2,
        "gold_mail_after_query_date": 1,
        "gold_mail_not_in_database": 1,
        "gold_mail_not_in_inbox": 2,
        "malformed_query_date": 1,
        "no_gold_mail": 1,
        "no_question_or_answer": 1,
        "repeated_id": 1,
        "too_many_messages": 1,
        "unrealistic": 1,
    }
    assert {(s.id, s.split) for s in report.scenarios} == {("1", "train"), ("9", "train"), ("100", "test")}
    first = next(s for s in report.scenarios if s.id == "1")
    assert first.message_ids == ("<1@example.com>",), "copies are one mail, named as the database names it"
    assert first.inbox_address == OWNER and first.query_date == datetime(2002, 6, 1, 23, 59, 59)


def test_unlabelled_questions_are_kept_when_asked_for(tmp_path: Path, database: MailDatabase) -> None:
    bare = [{k: v for k, v in question(n).items() if k not in ("answer", "message_ids")} for n in (1, 2)]
    bare.append(bare[0] | {"id": 3, "inbox_address": "nobody@example.com"})
    train = write(tmp_path / "train.parquet", bare)
    report = load(train, train, database, unlabelled=True)
    assert report.dropped == {"unknown_inbox": 2}
    assert [(s.answer, s.message_ids, s.labelled) for s in report.scenarios] == [("", (), False)] * 4
    with pytest.raises(BadMail, match="lacks the columns answer, message_ids"):
        load(train, train, database)
    half = write(tmp_path / "half.parquet", [question(1, answer=None), question(2, message_ids=[]), question(3)])
    kept = load(half, half, database, unlabelled=True).scenarios
    assert [s.labelled for s in sorted(kept, key=lambda s: s.id)] == [False, False, False, False, True]


def test_the_held_out_set_depends_only_on_the_ids(tmp_path: Path, database: MailDatabase) -> None:
    rows = [question(n) for n in range(1, 301)]
    some = load(write(tmp_path / "a.parquet", rows), None, database)
    held_out = {s.id for s in some.scenarios if s.split == "test"}
    assert 40 <= len(held_out) <= 80
    other = write(tmp_path / "b.parquet", rows[::-2])
    again = load(other, None, database, seed=7)
    assert {s.id for s in again.scenarios if s.split == "test"} == held_out & {s.id for s in again.scenarios}


def test_training_questions_share_no_mail_with_test_questions(tmp_path: Path, database: MailDatabase) -> None:
    rows = [question(n, message_ids=[f"<{n % 40 + 1}@example.com>"]) for n in range(1, 201)]
    report = load(write(tmp_path / "train.parquet", rows), None, database)
    mails = {
        split: {m for s in report.scenarios if s.split == split for m in s.message_ids} for split in ("train", "test")
    }
    assert mails["train"] and mails["test"] and not mails["train"] & mails["test"]
    assert report.dropped["mail_of_a_test_question"] > 0


def test_limits_draw_by_seed_and_a_smaller_draw_is_the_start_of_a_larger(
    tmp_path: Path, database: MailDatabase
) -> None:
    path = write(tmp_path / "train.parquet", [question(n) for n in range(1, 301)])

    def drawn(**options: Any) -> list[str]:
        return [s.id for s in load(path, None, database, **options).scenarios if s.split == "train"]

    assert len(drawn(train_limit=50)) == 50 and drawn() == drawn()
    assert drawn(train_limit=10) == drawn()[:10] != drawn(seed=1)[:10]


def test_a_test_split_next_to_the_train_split_is_used(tmp_path: Path, database: MailDatabase) -> None:
    write(tmp_path / "train-0.parquet", [question(n) for n in range(1, 20)])
    write(tmp_path / "test-0.parquet", [question(n) for n in range(20, 25)])
    report = load(tmp_path, None, database)
    assert sorted(s.id for s in report.scenarios if s.split == "test") == ["20", "21", "22", "23", "24"]


def test_questions_about_other_mails_are_one_clear_line(tmp_path: Path, database: MailDatabase) -> None:
    path = write(tmp_path / "train.parquet", [question(n, message_ids=["<x@y>"]) for n in range(1, 4)])
    with pytest.raises(BadMail, match=r"none of 3 questions .*gold_mail_not_in_database 3"):
        load(path, None, database)


def test_a_mail_with_the_message_id_of_another_inboxes_mail_is_found(
    database_of: Callable[[Iterable[Email]], MailDatabase],
) -> None:
    """A list sends one Message-ID with a personal footer to each."""
    database = database_of([mail(n, message_id="<m@x>", to_addresses=(who,)) for n, who in ((1, STRANGER), (2, OWNER))])
    asked = Scenario(
        id="a", question="?", answer="!", message_ids=("<m@x>",), inbox_address=OWNER,
        query_date=datetime(2002, 6, 1), split="test",
    )  # fmt: skip
    kept = check_scenarios([asked, asked.model_copy(update={"inbox_address": STRANGER})], database).scenarios
    assert [open_scenario(scenario, database).gold_ids for scenario in kept] == [[2], [1]]


def test_scenarios_are_checked_and_kept_in_order(database: MailDatabase) -> None:
    good = Scenario(
        id="a", question="?", answer="!", message_ids=("<2@example.com>", "<301@example.com>"), inbox_address=OWNER,
        query_date=datetime(2002, 6, 1), split="test", kind="room",
    )  # fmt: skip
    lost = good.model_copy(update={"id": "b", "message_ids": ("<2@example.com>", "<x>")})
    early = good.model_copy(update={"id": "c", "query_date": datetime(2001, 1, 2)})
    report = check_scenarios([good, lost, early], database)
    assert report.dropped == {"gold_mail_after_query_date": 1, "gold_mail_not_in_database": 1}
    assert report.scenarios == [good.model_copy(update={"message_ids": ("<2@example.com>", "<1@example.com>")})]
    with pytest.raises(BadMail, match="none of 1 questions"):
        check_scenarios([lost], database)
