"""Statistics of a mail database."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate
from pathlib import Path

from pydantic import BaseModel

from environment.email_db import MailDatabase

_INBOXES_SHOWN = 5


class Quantiles(BaseModel):
    """Quantiles by nearest rank."""

    min: int
    median: int
    p90: int
    p99: int
    max: int


class DatabaseStatistics(BaseModel):
    """Sizes and dates of a mail database. Copies count as one mail; every address that sent or received mail is an inbox."""

    mails: int
    further_message_ids: int
    """Message-IDs of copies."""
    inboxes: int
    first_date: datetime | None
    last_date: datetime | None
    mails_per_inbox: Quantiles | None
    """None when there are no mails, like `body_chars`."""
    body_chars: Quantiles | None
    largest_inboxes: dict[str, int]
    """Mails of the five largest inboxes, largest first."""


def database_statistics(path: Path) -> DatabaseStatistics:
    """Compute the statistics of the database `path`, about one second per 100,000 mails. Raise BadMail like `MailDatabase`."""
    database = MailDatabase(path, query_seconds=math.inf)
    try:
        mails = database.email_count()
        (first, last), (message_ids, inboxes) = (
            database.rows(f"SELECT {columns}")[0]
            for columns in (
                "min(sent_at), max(sent_at) FROM copy",
                "(SELECT count(DISTINCT message_id) FROM alias), (SELECT count(*) FROM address)",
            )
        )
        per_inbox = "SELECT address_id, count(DISTINCT email_id) AS mails FROM delivery GROUP BY address_id"
        largest = database.rows(
            f"SELECT address, mails FROM ({per_inbox} ORDER BY mails DESC, address_id LIMIT {_INBOXES_SHOWN})"
            " JOIN address ON address.id = address_id ORDER BY mails DESC, address"
        )
        return DatabaseStatistics(
            mails=mails,
            further_message_ids=message_ids - mails,
            inboxes=inboxes,
            first_date=datetime.fromisoformat(first) if first else None,
            last_date=datetime.fromisoformat(last) if last else None,
            mails_per_inbox=_quantiles(database.rows(f"SELECT mails, count(*) FROM ({per_inbox}) GROUP BY mails")),
            body_chars=_quantiles(database.rows("SELECT length(body), count(*) FROM email GROUP BY 1")),
            largest_inboxes=dict(largest),
        )
    finally:
        database.close()


def _quantiles(counts: Iterable[tuple[int, int]]) -> Quantiles | None:
    """Return the quantiles of (value, count) pairs."""
    ordered = sorted(counts)
    total = sum(count for _, count in ordered)
    if not total:
        return None

    def at(share: float) -> int:
        rank, seen = math.ceil(share * total), accumulate(count for _, count in ordered)
        return next(value for (value, _), up_to in zip(ordered, seen, strict=True) if up_to >= rank)

    return Quantiles(min=ordered[0][0], median=at(0.5), p90=at(0.9), p99=at(0.99), max=ordered[-1][0])
