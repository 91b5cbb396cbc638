"""Whose inbox a mail is in that came through a list or as a blind copy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from environment.email_db import MailDatabase, build_database
from environment.models import Email
from environment.sources.rfc822 import parse_mail
from tests.environment.raw_mails import raw_mail

ME, LIST = "me@x.example", "team@lists.example"
RECEIVED = "Received: from a.example (b for c@d.example)\n by mx.x.example with ESMTPS\n id 7 for {} (single-drop); Mon, 4 Mar\n"


def blind_copies(head: str) -> Sequence[str]:
    mail = parse_mail(head.encode() + raw_mail(to=LIST), "mail")
    assert isinstance(mail, Email)
    return mail.bcc_addresses


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (RECEIVED.format("<eva@x.example>"), ("eva@x.example",)),
        (RECEIVED.format("eva@x.example"), ("eva@x.example",)),
        ("Delivered-To: eva@x.example\n" + RECEIVED.format("<e@x.example>"), ("eva@x.example", "e@x.example")),
        (RECEIVED.format("<eva@x.example>") + RECEIVED.format("<victim@x.example>"), ("eva@x.example",)),
        ("Received: by mx.x.example\n" + RECEIVED.format("<victim@x.example>"), ()),
        ("Received: from (for victim@x.example) by mx.x.example; Mon, 4 Mar\n", ()),
        ("Received: from x for victim@x.example by mx.x.example; Mon, 4 Mar\n", ()),
    ],
)
def test_the_last_server_says_for_whom_it_received_a_mail(head: str, found: Sequence[str]) -> None:
    assert blind_copies(head) == found


def test_every_mail_is_in_the_inbox_of_the_owner_and_in_no_other_inbox_than_before(tmp_path: Path) -> None:
    texts = [
        raw_mail(1, to=LIST),
        raw_mail(2, to=ME),
        raw_mail(3, to="Me <ME@X.example>", cc=LIST),
        raw_mail(4, to="bob@x.example", **{"from": ME}),
        raw_mail(5, to="bob@x.example"),
    ]
    mails = [parse_mail(text, "mail") for text in texts]
    sizes = {}
    for owner in (None, "Me@x.Example"):
        build_database(mails, tmp_path / "mails.sqlite", owner=owner)
        database = MailDatabase(tmp_path / "mails.sqlite")
        sizes[owner] = {inbox: len(found) for inbox in database.inboxes() if (found := hits(database, inbox))}
        assert len(hits(database, ME)) == (3 if owner is None else 5)
        roles = [
            row[0]
            for row in database.rows(
                "SELECT role FROM delivery JOIN address ON address_id = address.id WHERE address = ? ORDER BY email_id",
                ME,
            )
        ]
        assert roles == (["to", "to", "from"] if owner is None else ["bcc", "to", "to", "from", "bcc"])
        database.close()
    assert {k: v for k, v in sizes[None].items() if k != ME} == {
        k: v for k, v in sizes["Me@x.Example"].items() if k != ME
    }


def hits(database: MailDatabase, inbox: str) -> list[str]:
    return [hit.message_id for hit in database.mailbox(inbox, datetime(2030, 1, 1)).search(["note"])]
