from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from environment.email_db import MailDatabase
from environment.errors import BadMail
from environment.feedback import with_reviewed
from environment.models import Email, Scenario
from environment.scenarios import ScenarioReport
from tests.environment.sample_mails import OWNER, STRANGER, mail


@pytest.fixture
def database(database_of: Callable[[Iterable[Email]], MailDatabase]) -> MailDatabase:
    return database_of([mail(1), mail(2), mail(3, to_addresses=(STRANGER,))])


def rate(folder: Path, name: str, review: str, number: int = 1, **fields: Any) -> None:
    folder.mkdir(exist_ok=True)
    rating = {
        "question": f"What is note {number}?",
        "inbox_address": OWNER,
        "query_date": "2002-06-01",
        "verdict": "down",
        "review": review,
        "answer": f"Number {number}",
        "message_ids": [f"<{number}@example.com>"],
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(rating | fields))


def report(*scenarios: Scenario) -> ScenarioReport:
    return ScenarioReport(read=len(scenarios), scenarios=list(scenarios), dropped_ids={})


def scenario(number: int) -> Scenario:
    return Scenario(
        id=str(number),
        question="?",
        answer="!",
        message_ids=(f"<{number}@example.com>",),
        inbox_address=OWNER,
        query_date=datetime(2002, 6, 1),
        split="train",
    )


def test_reviewed_ratings_become_questions(tmp_path: Path, database: MailDatabase) -> None:
    rate(tmp_path / "f", "a", "train", 2)
    rate(tmp_path / "f", "b", "test", 1)
    rate(tmp_path / "f", "c", "pending")
    rate(tmp_path / "f", "d", "rejected")
    rate(tmp_path / "f", "e", "train", 3)
    rate(tmp_path / "f", "g", "train", 2, answer="")
    added = with_reviewed(report(scenario(1), scenario(2)), tmp_path / "f", database)
    assert [(s.id, s.split, s.kind) for s in added.scenarios] == [
        ("2", "train", "unknown"),
        ("feedback-a", "train", "feedback"),
        ("feedback-b", "test", "feedback"),
    ]
    assert added.dropped_ids == {
        "gold_mail_not_in_inbox": ["feedback-e"],
        "mail_of_a_test_question": ["1"],
        "no_question_or_answer": ["feedback-g"],
    }
    assert added.read == 6


def test_no_mail_is_trained_on_and_tested_under_another_message_id(
    tmp_path: Path, database_of: Callable[[Iterable[Email]], MailDatabase]
) -> None:
    database = database_of([mail(1), mail(1, message_id="<copy@example.com>", to_addresses=(STRANGER,))])
    rate(tmp_path / "f", "a", "test", 1, inbox_address=STRANGER, message_ids=["<copy@example.com>"])
    added = with_reviewed(report(scenario(1)), tmp_path / "f", database)
    assert [s.message_ids for s in added.scenarios] == [("<copy@example.com>",)]
    assert added.dropped_ids == {"mail_of_a_test_question": ["1"]}


@pytest.mark.parametrize("change", [{"review": "yes"}, {"question": [5]}, {"message_ids": "x"}])
def test_a_file_without_a_rating_is_named(tmp_path: Path, database: MailDatabase, change: dict[str, Any]) -> None:
    rate(tmp_path / "f", "a", "train", **change) if "review" not in change else rate(tmp_path / "f", "a", "yes")
    with pytest.raises(BadMail, match="a.yaml"):
        with_reviewed(report(), tmp_path / "f", database)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, database: MailDatabase) -> None:
    with pytest.raises(BadMail, match="not a folder"):
        with_reviewed(report(), tmp_path / "absent", database)


@pytest.mark.parametrize("written", ["13:00", "31000", "yes", "2024-02-30"])
def test_what_a_reviewer_writes_is_text(tmp_path: Path, database: MailDatabase, written: str) -> None:
    rate(tmp_path / "f", "a", "train", 2)
    file = tmp_path / "f" / "a.yaml"
    file.write_text(file.read_text().replace("answer: Number 2", f"answer: {written}"))
    [scenario] = with_reviewed(report(), tmp_path / "f", database).scenarios
    assert scenario.answer == written
