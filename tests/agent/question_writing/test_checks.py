"""Checks of written questions, and the reasons for rejecting them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import pytest

from agent.question_writing.batches import Batch
from agent.question_writing.checks import QuestionChecks, is_said
from environment.email_db import MailDatabase, build_database
from environment.models import Email
from environment.sources.parquet import Question

OWNER = "ann.lee@example.com"
TEXTS = [
    "From: bob.ray\nDate: 3 Jan 2001 09:30\nSubject: Heron budget\n\nThe Heron budget of $1.5 million is approved.",
    "From: bob.ray\nDate: 4 Jan 2001 09:30\nSubject: Contact list\n\nYou reach Dana Voss on 555-0173 before noon.",
]
GOOD = {
    "question": "How large is the approved budget of Heron?",
    "answer": "$1.5 million",
    "mail_ids": [1],
    "how_realistic": 0.9,
}
PHONE = {"question": "What is the number of Dana Voss?", "answer": "555-0173", "mail_ids": [2], "how_realistic": 0.9}


@pytest.fixture
def check(tmp_path: Path) -> Callable[[object], Question | str]:
    emails = [
        Email(
            message_id=f"<{number}@example.com>",
            subject=text.partition("Subject: ")[2].partition("\n")[0],
            from_address="bob.ray@example.com",
            to_addresses=(OWNER,),
            date=datetime(2001, 1, 2 + number, 9, 30),
            body=text.rpartition("\n\n")[2],
        )
        for number, text in enumerate(TEXTS, start=1)
    ]
    # Newer mails that match "number", so that search has something to prefer.
    emails += [
        Email(
            message_id=f"<n{n}@example.com>", from_address=OWNER, date=datetime(2001, 1, 4, 10, n), body=f"Number {n}"
        )
        for n in range(20)
    ]
    build_database(emails, tmp_path / "mails.sqlite")
    checks = QuestionChecks(MailDatabase(tmp_path / "mails.sqlite"), min_realism=0.5, max_messages=1)
    return lambda written: checks.check(written, Batch(OWNER, (1, 2)), TEXTS)


def test_a_good_question_becomes_a_row(check: Callable[[object], Question | str]) -> None:
    kept = check(GOOD)
    assert isinstance(kept, Question)
    assert (kept.question, kept.answer, kept.message_ids) == (GOOD["question"], "$1.5 million", ("<1@example.com>",))
    assert (kept.how_realistic, kept.inbox_address) == (0.9, OWNER)
    assert 1 <= (date.fromisoformat(kept.query_date) - date(2001, 1, 3)).days <= 31
    assert len(kept.id) == 12


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"question": None}, "malformed"),
        ({"question": " "}, "malformed"),
        ({"mail_ids": "first"}, "malformed"),
        ({"how_realistic": 7}, "malformed"),
        ({"how_realistic": float("nan")}, "malformed"),
        ({"answer": "\ud800"}, "answer_not_in_mail"),
        ({"how_realistic": 0.4}, "unrealistic"),
        ({"question": "Heron " * 100}, "too_long"),
        ({"answer": "Heron budget " * 20}, "too_long"),
        ({"answer": "Heron-" * 200}, "too_long"),
        ({"mail_ids": []}, "no_mail_cited"),
        ({"mail_ids": [3]}, "mail_not_in_batch"),
        ({"mail_ids": [0]}, "mail_not_in_batch"),
        ({"mail_ids": [10**30]}, "mail_not_in_batch"),
        ({"mail_ids": [1, 2]}, "too_many_mails"),
        ({"answer": "$2.5 million"}, "answer_not_in_mail"),
        ({"answer": "555-0173"}, "answer_not_in_mail"),
        ({"answer": "Approved by Dana Voss"}, "answer_not_in_mail"),
        ({"answer": "Yes"}, "answer_not_in_mail"),
        ({"question": "Is the Heron budget really $1.5 million?"}, "answer_in_question"),
        ({"question": "How much did we say?"}, "not_found_by_search"),
    ],
)
def test_reasons_to_reject_a_question(check: Callable[[object], Question | str], changes: dict, reason: str) -> None:
    assert check(GOOD | changes) == reason


def test_malformed_questions_are_rejected(check: Callable[[object], Question | str]) -> None:
    for value in (None, "What?", [], 3, {"question": "What?"}):
        assert check(value) == "malformed"


def test_duplicate_questions_are_rejected(check: Callable[[object], Question | str]) -> None:
    assert isinstance(check(GOOD), Question)
    assert check(GOOD) == "duplicate"
    assert (
        check(GOOD | {"question": "How large is Heron's approved budget, exactly?", "answer": "1.5 million"})
        == "duplicate"
    )
    assert check(GOOD | {"question": "Which sum may the Heron team spend from its budget?"}) == "duplicate"
    assert isinstance(
        check(GOOD | {"question": "Who sent me the news about the Heron budget?", "answer": "Bob Ray"}), Question
    )
    assert isinstance(check(PHONE), Question)


@pytest.mark.parametrize(
    ("answer", "text", "said"),
    [
        ("3pm", "We meet at 15:00.", True),
        ("4pm", "We meet at 15:00.", False),
        ("15 May", "Due on May 15, 2001", True),
        ("2001", "Due on May 15, 2001", True),
        ("Room 4B", "It is in room 4B.", True),
        ("4", "It is in room 14.", False),
        ("Dana Voss", "Write to dana.voss for it", True),
        ("dana.voss@example.com", "Write to dana.voss@example.com", True),
        ("Dana Voss", "Write to Dana for it", False),
        ("the new turbines", "They bought a new turbine", True),
        ("a quarrel about money", "They bought a new turbine", False),
        ("no", "Yes and no", False),
        ("Lee Park", "Ann Lee, Park Street 5", False),
        ("Harlow Dana", "Piet Harlow, Dana Voss", False),
        ("Dana Voss", "Please ask Dana\nVoss", True),
        ("Dana Voss", "Voss, Dana will come", True),
        ("up 5%", "Sales were down 5%.", False),
        ("up 5%", "Sales were up 5%, costs down 6%.", True),
        ("from Oslo", "The train to Oslo", False),
        ("10000", "It costs 10 000 €.", True),
    ],
)
def test_which_answers_a_mail_contains(answer: str, text: str, said: bool) -> None:
    assert is_said(answer, text) is said
