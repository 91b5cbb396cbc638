from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from environment.email_db import MailDatabase
from environment.email_statistics import DatabaseStatistics, Quantiles, database_statistics
from environment.models import Email
from tests.environment.sample_mails import OWNER, STRANGER, mail

Build = Callable[[Iterable[Email]], MailDatabase]


def test_a_database_is_counted(database_of: Build) -> None:
    mails = [mail(n, body="x" * n, date=datetime(2001, 1, 1, n % 24, n % 60), subject=f"{n}") for n in range(1, 101)]
    copy = mails[0].model_copy(update={"message_id": "<copy@example.com>"})
    foreign = mail(200, to_addresses=(STRANGER,), date=datetime(2002, 1, 1), body="é" * 50)
    found = database_statistics(database_of([*mails, copy, foreign]).path)
    assert found == DatabaseStatistics(
        mails=101,
        further_message_ids=1,
        inboxes=3,
        first_date=datetime(2001, 1, 1, 0, 12),
        last_date=datetime(2002, 1, 1),
        mails_per_inbox=Quantiles(min=1, median=100, p90=101, p99=101, max=101),
        body_chars=Quantiles(min=1, median=50, p90=90, p99=99, max=100),
        largest_inboxes={"bob.ray@example.com": 101, OWNER: 100, STRANGER: 1},
    )


def test_an_empty_database_has_no_quantiles(database_of: Build) -> None:
    found = database_statistics(database_of([]).path)
    assert (found.mails, found.first_date, found.mails_per_inbox, found.largest_inboxes) == (0, None, None, {})
