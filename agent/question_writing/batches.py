"""Group mails into batches for the model, and order the batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from environment.email_db import MailDatabase
from environment.inbox_mails import largest_inbox, mails_of
from environment.mail_text import LAST_DATE


@dataclass(frozen=True)
class Batch:
    """Some mails of one inbox, oldest first."""

    inbox: str
    mail_ids: tuple[int, ...]


def chosen_inboxes(database: MailDatabase, named: Sequence[str]) -> list[str]:
    """Return the distinct named inboxes as the database spells them; without names, the largest inbox.

    Raise BadMail for an address without mail.
    """
    if named:
        return list(dict.fromkeys(database.mailbox(address, LAST_DATE).address for address in named))
    largest = largest_inbox(database)
    return [] if largest is None else [largest]


def batches_of(database: MailDatabase, inbox: str, size: int, seed: int) -> list[Batch]:
    """Split all mails of `inbox` into batches of at most `size`.

    A batch is a contiguous period, so that the model sees the mails of a thread together and does not ask what the next
    mail corrects. `seed` shuffles the batches, so that any number of them covers all periods.
    """
    mail_ids = mails_of(database, inbox)
    batches = [Batch(inbox, tuple(mail_ids[start : start + size])) for start in range(0, len(mail_ids), size)]
    random.Random(f"question-batches-{seed}-{inbox}").shuffle(batches)
    return batches
