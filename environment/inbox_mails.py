"""Whole inboxes: which there are most of, and every mail of one. What a reader of everything needs, and an agent never gets."""

from __future__ import annotations

from environment.email_db import MailDatabase
from environment.email_text import normalise_address


def largest_inboxes(database: MailDatabase, count: int) -> list[str]:
    """The `count` addresses that sent or received the most mails, the largest first."""
    rows = database.rows(
        "SELECT address FROM delivery JOIN address ON address.id = address_id"
        " GROUP BY address_id ORDER BY count(*) DESC, address LIMIT ?",
        count,
    )
    return [row[0] for row in rows]


def mails_of(database: MailDatabase, address: str) -> list[int]:
    """Ids of all mails that `address` sent or received, the oldest first; none for an unknown address."""
    rows = database.rows(
        "SELECT email.id FROM delivery JOIN address ON address.id = address_id JOIN email ON email.id = email_id"
        " WHERE address = ? ORDER BY sent_at, email.id",
        normalise_address(address),
    )
    return [row[0] for row in rows]
