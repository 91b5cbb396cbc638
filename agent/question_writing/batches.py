"""Which mails the model is shown together, and in which order of batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from environment.email_db import MailDatabase
from environment.inbox_mails import largest_inboxes, mails_of
from environment.mail_text import LAST_DATE


@dataclass(frozen=True)
class Batch:
    """Some mails of one inbox, the oldest first."""

    inbox: str
    mail_ids: tuple[int, ...]


def chosen_inboxes(database: MailDatabase, named: Sequence[str], largest: int) -> list[str]:
    """The named inboxes as the database writes them, each once; when none is named, the `largest` largest.

    Raises BadInput for an address that no mail is from or to.
    """
    return list(dict.fromkeys(database.mailbox(address, LAST_DATE).address for address in named)) or largest_inboxes(
        database, largest
    )


def batches_of(database: MailDatabase, inbox: str, size: int, seed: int) -> list[Batch]:
    """All mails of `inbox`, each in one batch of at most `size`.

    A batch is a stretch of time, so that the model sees a thread's mails together and does not ask what the next mail
    answers differently. The order of the batches is random, by `seed` alone: however many are used, they are from all times.
    """
    mail_ids = mails_of(database, inbox)
    batches = [Batch(inbox, tuple(mail_ids[start : start + size])) for start in range(0, len(mail_ids), size)]
    random.Random(f"question-batches-{seed}-{inbox}").shuffle(batches)
    return batches
