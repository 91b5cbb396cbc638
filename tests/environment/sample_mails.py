"""Mails to test with."""

from __future__ import annotations

from datetime import datetime

from environment.models import Email

OWNER = "ann.lee@example.com"
STRANGER = "zoe.fox@other.example"


def mail(number: int, **fields: object) -> Email:
    """Mail `number` to the owner, sent on that day of January 2001 unless `fields` say otherwise."""
    defaults: dict[str, object] = {
        "message_id": f"<{number}@example.com>",
        "subject": f"Note {number}",
        "from_address": "bob.ray@example.com",
        "to_addresses": (OWNER,),
        "date": datetime(2001, 1, number % 28 + 1, 9, 30),
        "body": f"This is note number {number}.",
    }
    return Email(**(defaults | fields))
