"""Whole inboxes, for code that reads all mail. The agent's tools never use this module."""

from __future__ import annotations

from environment.email_db import MailDatabase
from environment.mail_text import normalise_address


def largest_inboxes(database: MailDatabase, count: int) -> list[str]:
    """Return the `count` addresses that sent or received the most mails, largest first."""
    rows = database.rows(
        "SELECT address FROM delivery JOIN address ON address.id = address_id"
        " GROUP BY address_id ORDER BY count(DISTINCT email_id) DESC, address LIMIT ?",
        count,
    )
    return [row[0] for row in rows]


def mails_of(database: MailDatabase, address: str) -> list[int]:
    """Return the ids of all mails that `address` sent or received, oldest first; empty for an unknown address."""
    rows = database.rows(
        "SELECT delivery.email_id FROM delivery JOIN address ON address.id = address_id JOIN copy ON copy.id = copy_id"
        " WHERE address = ? GROUP BY delivery.email_id ORDER BY min(sent_at), delivery.email_id",
        normalise_address(address),
    )
    return [row[0] for row in rows]
