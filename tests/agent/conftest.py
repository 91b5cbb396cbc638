"""A scripted policy server and a small mailbox."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from environment.email_db import MailDatabase, build_database
from environment.models import Email, Scenario
from tests.fakes.policy import OWNER, ScriptedPolicy


@pytest.fixture
def scripted() -> Iterator[ScriptedPolicy]:
    with ScriptedPolicy() as server:
        yield server


def mail(number: int, subject: str, body: str) -> Email:
    return Email(
        message_id=f"<{number}@example.com>",
        subject=subject,
        from_address="bob.ray@example.com",
        to_addresses=(OWNER,),
        date=datetime(2001, 1, number, 9, 30),
        body=body,
    )


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MailDatabase]:
    path = tmp_path / "mails.sqlite"
    build_database(
        [
            mail(1, "Heron project: people", "From now on Dana Voss leads the Heron project, write to her."),
            mail(2, "Contact list", "You reach Dana Voss on 555-0173 before noon."),
            mail(3, "Lunch", "The canteen is closed on Friday."),
        ],
        path,
    )
    opened = MailDatabase(path)
    yield opened
    opened.close()


@pytest.fixture
def two_mail_question() -> Scenario:
    return Scenario(
        id="q1",
        question="What is the number of the person who leads Heron?",
        answer="555-0173",
        message_ids=("<1@example.com>", "<2@example.com>"),
        inbox_address=OWNER,
        query_date=datetime(2001, 2, 1),
        split="train",
        kind="lead_phone",
    )
