"""Whole inboxes, for code that reads all mail. The agent's tools never use this module."""

from __future__ import annotations

from environment.email_db import MailDatabase
from environment.mail_text import normalise_address


def largest_inbox(database: MailDatabase) -> str | None:
    """Return the address that sent or received the most mails; None for an empty database."""
    rows = database.rows(
        "SELECT address FROM delivery JOIN address ON address.id = address_id"
        " GROUP BY address_id ORDER BY count(DISTINCT email_id) DESC, address LIMIT 1"
    )
    return str(rows[0][0]) if rows else None


def mails_of(database: MailDatabase, address: str) -> list[int]:
    """Return the ids of all mails that `address` sent or received, oldest first; empty for an unknown address."""
    rows = database.rows(
        "SELECT delivery.email_id FROM delivery JOIN address ON address.id = address_id JOIN copy ON copy.id = copy_id"
        " WHERE address = ? GROUP BY delivery.email_id ORDER BY min(sent_at), delivery.email_id",
        normalise_address(address),
    )
    return [row[0] for row in rows]
