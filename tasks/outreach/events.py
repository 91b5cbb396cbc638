"""Feedback on real e-mails: a SQLite file with the sent messages and their events."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Literal, get_args

from tasks.outreach.email import EmailCheck
from tasks.outreach.feedback import MEAN_REPLY_RATE, Feedback
from tasks.outreach.scenarios import Scenario
from training.errors import BadInput

Event = Literal["opened", "replied", "bounced"]
_PRIOR_SENDS = 20.0
"""Weight of the mean reply rate in the rate of a fact, in e-mails."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    id TEXT PRIMARY KEY, run TEXT NOT NULL, iteration INTEGER NOT NULL, scenario TEXT NOT NULL, facts TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    message TEXT NOT NULL REFERENCES messages (id), event TEXT NOT NULL, received TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (message, event)
) WITHOUT ROWID;
"""


class UnknownMessage(BadInput):
    """Feedback names an e-mail that no run has written."""


class EventStore:
    """Messages and events. Safe to use from several processes. An event counts once, even if it is reported several
    times.

    Every method raises `BadInput` if the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as connection:
            connection.executescript(_SCHEMA)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=60)) as connection, connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA foreign_keys = ON")
                yield connection
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:  # a subclass: locked, full or not writable, but not damaged
                raise
            raise BadInput(
                f"{self._path} is damaged ({error}): restore it, or move it away to go on without its events"
            ) from None

    def add_messages(
        self,
        run: str,
        iteration: int,
        messages: Iterable[tuple[str, str, Iterable[str]]],
        announced: Collection[str] = (),
    ) -> None:
        """Record e-mails as (id, scenario, facts).

        They replace those of an interrupted iteration that ran again, except e-mails with events and those whose ids were
        `announced`: the receiver may have sent them.
        """
        with self._connected() as connection:
            connection.execute(
                "DELETE FROM messages WHERE run = ? AND iteration = ? AND id NOT IN (SELECT message FROM events) "
                "AND id NOT IN (SELECT value FROM json_each(?))",
                (run, iteration, json.dumps(list(announced))),
            )
            connection.executemany(
                "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?, ?)",
                [(id, run, iteration, scenario, json.dumps(list(facts))) for id, scenario, facts in messages],
            )

    def record(self, message_id: str, event: str) -> bool:
        """Store an event; False when it was known already.

        Raises:
            UnknownMessage: there is no such e-mail.
            BadInput: there is no such event.
        """
        if event not in get_args(Event):
            raise BadInput(f"event {event!r} is unknown; allowed are {', '.join(get_args(Event))}")
        with self._connected() as connection:
            if connection.execute("SELECT 1 FROM messages WHERE id = ?", (message_id,)).fetchone() is None:
                raise UnknownMessage(
                    f"no run has written a message {message_id!r}; message ids are in the e-mails of an iteration"
                )
            added = connection.execute(
                "INSERT OR IGNORE INTO events (message, event) VALUES (?, ?)", (message_id, event)
            )
            return added.rowcount == 1

    def rates_by_fact(self) -> dict[str, tuple[int, int, int]]:
        """Map each fact to the number of sent e-mails that state it, of opened ones and of replied ones.

        All e-mails of an iteration with any event count as sent, except those that bounced.
        """
        with self._connected() as connection:
            rows = connection.execute(
                "SELECT facts, ifnull(max(event = 'opened'), 0), ifnull(max(event = 'replied'), 0), ifnull(max(event = 'bounced'), 0) "
                "FROM messages LEFT JOIN events ON events.message = messages.id WHERE (run, iteration) IN "
                "(SELECT run, iteration FROM messages JOIN events ON events.message = messages.id) GROUP BY messages.id"
            ).fetchall()
        found: dict[str, tuple[int, int, int]] = {}
        for facts, opened, replied, bounced in rows:
            for fact in json.loads(facts) if not bounced else ():
                sent, opens, replies = found.get(fact, (0, 0, 0))
                found[fact] = (sent + 1, opens + opened, replies + replied)
        return found


class RecordedFeedback:
    """Estimates the reply rate of an e-mail from the events of earlier e-mails with the same facts, as of the last
    `refresh`.

    An e-mail that has just been written has no feedback of its own yet. Its rate is the mean over its facts of their rate of
    replies (`EventStore.rates_by_fact`), shrunk to the published mean.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self.refresh()

    def refresh(self) -> None:
        self._rates = self._store.rates_by_fact()

    def send(self, scenario: Scenario, check: EmailCheck | None, sends: int, message_id: str) -> Feedback:
        if check is None or not check.stated:
            return Feedback(sends=1, opens=0, replies=0)
        rates = [self._rates.get(fact, (0, 0, 0)) for fact in check.stated]
        replied = fmean((r + _PRIOR_SENDS * MEAN_REPLY_RATE) / (n + _PRIOR_SENDS) for n, _, r in rates)
        opened = fmean(o / n if n else 0.0 for n, o, _ in rates)
        return Feedback(sends=1, opens=opened, replies=replied)
