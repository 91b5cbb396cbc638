"""The baselines on a small mailbox."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from agent.baselines import do_nothing, search_and_quote
from environment.email_db import Mailbox, MailDatabase, build_database
from environment.models import Email

ME = "owner@kestrel.example"


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    def mail(name: str, subject: str, body: str) -> Email:
        return Email(
            message_id=f"<{name}@kestrel.example>",
            subject=subject,
            from_address="dana.voss@kestrel.example",
            to_addresses=(ME,),
            date=datetime(2024, 3, 14, 9, 30),
            body=body,
        )

    emails = [
        mail(
            "heron",
            "Heron",
            "Morning all. The Heron budget review is in Room 4B, version 2.5 applies.\nBring the draft.",
        ),
        mail("lunch", "Lunch", "Soup today."),
    ]
    path = tmp_path / "mail.db"
    build_database(emails, path)
    return MailDatabase(path).mailbox(ME, datetime(2024, 4, 1))


def test_it_quotes_the_best_sentence_of_the_top_hit(mailbox: Mailbox) -> None:
    answer = search_and_quote(mailbox, "Where is the Heron budget review?")
    assert answer is not None
    assert answer.answer == "The Heron budget review is in Room 4B, version 2.5 applies."
    assert answer.source_ids == ("<heron@kestrel.example>",)


@pytest.mark.parametrize("question", ["Where is the zeppelin?", "", "where is it?"])
def test_it_has_no_answer_when_nothing_is_found(mailbox: Mailbox, question: str) -> None:
    assert search_and_quote(mailbox, question) is None


def test_doing_nothing_answers_nothing() -> None:
    assert do_nothing() is None
