"""The mail database: one SQLite file that holds every mailbox, and the view of it that an agent is given.

`build_database` writes the file once; `MailDatabase` only ever reads it. `MailDatabase.mailbox(address, query_date)`
is one inbox at one moment, and the only thing that tools see: mail of other people and mail that has not been sent yet
cannot be found or read through it.

Schema: `email` (the text of each mail, stored once), `copy` (each time it was sent: date and Message-ID), `address`,
`delivery` (who sent or received which copy), `alias` (further Message-IDs of a copy), `reply` (which Message-IDs a copy answers),
`thread` (mails that may belong together) and `email_fts`, an FTS5 index of subject, body and
`inbox`. The last is a column of tokens such as `i17 i203`, one per sender or recipient, so that the limit to one inbox is
part of the full-text query: its cost follows the inbox, not the database. The index says which mails hold a word, and no
more: `Mailbox.search` does the ranking. What a mailbox shows of a mail (date, recipients, thread) comes from the copies that
its owner had sent or received by then. Deleting, changing and adding mail is not provided for: a build is a new file.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path

from environment.email_db_build import APPLICATION_ID, SCHEMA_VERSION, BuildReport, build_database
from environment.email_text import normalise_address, one_line, parse_query_date, storable, utc_without_zone
from environment.errors import BadInput, QueryTimeout
from environment.models import EmailView, SearchResult
from environment.search_text import passage, query_words

__all__ = ["BuildReport", "MailDatabase", "Mailbox", "build_database", "parse_query_date"]

MAX_RESULTS = 20
_QUERY_SECONDS = 10.0
_STEPS_PER_TIME_CHECK = 10_000
_SUBJECT_BONUS = 0.5
"""What a word in the subject adds to its weight: it says more about a mail than one in the body."""
_BOTH_BONUS = 0.05
"""What it adds in the body as well: too little to matter but between a mail on something and a line of thanks for it."""
_FIRST_BATCH = 50

_HOLDING = "SELECT {number}, json_group_array(rowid) FROM email_fts WHERE email_fts MATCH ?"
# The owner's copies of a mail decide whether it matches; the earliest one that does stands for it. Of a second, the lowest id.
_EARLIEST = "min(copy.sent_at || printf('#%012d', copy.id))"
_IN_TIME = f"""
    SELECT own.email_id, {_EARLIEST} FROM json_each(?)
    CROSS JOIN delivery AS own ON own.email_id = value AND own.address_id = ?
    CROSS JOIN copy ON copy.id = own.copy_id
    WHERE copy.sent_at BETWEEN ? AND ? {{conditions}} GROUP BY own.email_id
"""
_NEWEST = f"""
    SELECT own.email_id, {_EARLIEST} FROM delivery AS own JOIN copy ON copy.id = own.copy_id
    WHERE own.address_id = ? AND copy.sent_at BETWEEN ? AND ? {{conditions}}
    GROUP BY own.email_id ORDER BY 2 DESC, 1 DESC LIMIT ?
"""
_OWN_COPIES = """
    SELECT DISTINCT copy.id, copy.message_id, copy.sent_at FROM delivery JOIN copy ON copy.id = copy_id
    WHERE delivery.email_id = ? AND address_id = ? AND copy.sent_at <= ? ORDER BY copy.sent_at, copy.id
"""
_IS_PERSON = "(address = ? OR (address >= ? AND address < ?))"
_SENT_BY = (
    "AND EXISTS (SELECT 1 FROM delivery AS other JOIN address ON address.id = other.address_id"
    f" WHERE other.email_id = own.email_id AND other.copy_id = own.copy_id AND other.role = 'from' AND {_IS_PERSON})"
)
# Only the sender knows of blind copies to other people.
_SENT_TO = (
    "AND EXISTS (SELECT 1 FROM delivery AS other JOIN address ON address.id = other.address_id"
    f" WHERE other.email_id = own.email_id AND other.copy_id = own.copy_id AND {_IS_PERSON}"
    " AND (other.role IN ('to', 'cc')"
    " OR (other.role = 'bcc' AND (other.address_id = own.address_id OR own.role = 'from'))))"
)


class MailDatabase:
    """A finished mail database, read-only. Any thread may use it; each gets a connection of its own.

    Raises BadInput when `path` is missing, cut short, no mail database or one of another schema, and QueryTimeout for a
    query that computes for longer than `query_seconds`.
    """

    def __init__(self, path: Path, *, query_seconds: float = _QUERY_SECONDS) -> None:
        self.path = Path(path)
        self._query_seconds = query_seconds
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._metadata = self._checked_metadata()

    @property
    def content_checksum(self) -> str:
        """SHA-256 over all mails, recipients and aliases, taken when the file was built."""
        return self._metadata["content_checksum"]

    def email_count(self) -> int:
        """How many mails there are, copies counted once."""
        return int(self._metadata["emails"])

    def inboxes(self) -> list[str]:
        """Every address that sent or received mail, sorted."""
        return [row[0] for row in self.rows("SELECT address FROM address ORDER BY address")]

    def knows(self, address: str) -> bool:
        """Whether there is mail from or to this address."""
        return self._address_id(address) is not None

    def inboxes_by_size(self) -> list[str]:
        """Every address that sent or received mail, those with the most mail first."""
        query = (
            "SELECT address FROM address JOIN delivery ON address_id = address.id"
            " GROUP BY address.id ORDER BY count(*) DESC, address"
        )
        return [row[0] for row in self.rows(query)]

    def mailbox(self, address: str, query_date: datetime) -> Mailbox:
        """The mail of `address` up to and including the moment `query_date`. Raises BadInput for an unknown address."""
        address_id = self._address_id(address)
        if address_id is None:
            shown = one_line(storable(address))[:80]
            raise BadInput(f"unknown inbox '{shown}': no mail in {self.path.name} is from or to this address")
        return Mailbox(self, address_id, normalise_address(address), parse_query_date(query_date))

    def resolve(self, message_id: str) -> int | None:
        """Return the id of the mail of which a copy has this Message-ID. None if there is none."""
        rows = self.rows(
            "SELECT email_id FROM alias JOIN copy ON copy.id = copy_id WHERE alias.message_id = ? LIMIT 1",
            storable(message_id).strip(),
        )
        return rows[0][0] if rows else None

    def delivered_to(self, email_id: int, address: str) -> bool:
        """Whether `address` sent or received a copy of the mail `email_id`, at whatever date."""
        address_id = self._address_id(address)
        query = "SELECT 1 FROM delivery WHERE email_id = ? AND address_id = ? LIMIT 1"
        return address_id is not None and _is_id(email_id) and bool(self.rows(query, email_id, address_id))

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._local = threading.local()

    def rows(self, query: str, *values: object) -> list[tuple]:
        """The result of an SQL query. Raises QueryTimeout when it computes for longer than `query_seconds`."""
        connection = self._connection()
        # Processor time of this thread: on a busy machine a search must not fail that finishes on a quiet one.
        self._local.deadline = time.thread_time() + self._query_seconds
        try:
            return connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise QueryTimeout(f"a query of {self.path.name} took longer than {self._query_seconds:g} s") from None
            raise

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        local = self._local
        connection = getattr(local, "connection", None)
        if connection is None:
            # immutable: the file never changes once it exists, so SQLite needs neither locks nor a writable folder.
            address = f"{self.path.resolve().as_uri()}?mode=ro&immutable=1"
            connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            connection.execute("PRAGMA query_only = ON")
            connection.set_progress_handler(lambda: time.thread_time() > local.deadline, _STEPS_PER_TIME_CHECK)
            with self._lock:
                self._connections.append(connection)
            local.connection = connection
        return connection

    def _address_id(self, address: str) -> int | None:
        rows = self.rows("SELECT id FROM address WHERE address = ?", normalise_address(address))
        return rows[0][0] if rows else None

    def _checked_metadata(self) -> dict[str, str]:
        if not self.path.is_file():
            raise BadInput(f"there is no mail database at {self.path}; the data pipeline builds it")
        try:
            application_id = self.rows("PRAGMA application_id")[0][0]
            version = self.rows("PRAGMA user_version")[0][0]
            pages, page_size = (self.rows(f"PRAGMA {name}")[0][0] for name in ("page_count", "page_size"))
            if application_id != APPLICATION_ID:
                problem = "is not a mail database"
            elif version != SCHEMA_VERSION:
                problem = f"has schema version {version}, and this code reads version {SCHEMA_VERSION}"
            elif self.path.stat().st_size != pages * page_size:
                problem = "is cut short"
            else:
                metadata: dict[str, str] = dict(self.rows("SELECT key, value FROM metadata"))
                if {"content_checksum", "emails", "inboxes"} <= metadata.keys():
                    return metadata
                problem = "was never finished"
        except sqlite3.DatabaseError as error:
            problem = f"is not a readable mail database ({error})"
        self.close()
        raise BadInput(f"{self.path} {problem}; run the data pipeline again to build it")


class Mailbox:
    """One inbox at one moment: what its owner sent or received up to `query_date`, and nothing else."""

    def __init__(self, database: MailDatabase, address_id: int, address: str, query_date: datetime) -> None:
        self.address = address
        self.query_date = query_date
        self._database = database
        self._address_id = address_id
        self._latest = query_date.isoformat(" ")

    def search(
        self,
        keywords: Sequence[str],
        *,
        max_results: int = 5,
        sent_before: datetime | None = None,
        sent_after: datetime | None = None,
        from_addr: str = "",
        to_addr: str = "",
    ) -> list[SearchResult]:
        """The mails that match `keywords` best, best first; of equally good ones the newest first.

        Any of the words may match (in any inflection): a word that a mail lacks ranks it lower but does not hide it.
        A word counts the more the fewer mails of the inbox hold it, half as much again in the subject, a little more in
        both, and however often a mail holds it. Of equally good mails among the best `max_results`, those whose snippet
        is a question come last. At most 20 words count, stop words only where there are no others; all
        characters are data, none an operator. `max_results` is clamped to 1..20; `sent_before` and `sent_after` are
        inclusive. `from_addr` and `to_addr` (to or cc) are addresses or their part before the @; empty means anyone.
        With any of these four but without keywords, all mails that they leave match.
        """
        sought = query_words(keywords)
        if not sought and not (sent_before or sent_after or from_addr or to_addr):
            return []
        latest = self._latest
        if sent_before is not None:
            latest = min(latest, utc_without_zone(sent_before).isoformat(" "))
        earliest = utc_without_zone(sent_after).isoformat(" ") if sent_after is not None else ""
        conditions = ""
        values: list[object] = [earliest, latest]
        if from_addr:
            conditions += _SENT_BY
            values += _person(from_addr)
        if to_addr:
            conditions += _SENT_TO
            values += _person(to_addr)
        limit = min(max(int(max_results), 1), MAX_RESULTS)
        if sought:
            best = self._best(list(sought), limit, conditions, values)
        else:
            query = _NEWEST.format(conditions=conditions)
            best = {row[0]: (0.0, row[1]) for row in self._database.rows(query, self._address_id, *values, limit)}
        return self._results(best, frozenset(sought.values()))

    def read(self, email_id: int) -> EmailView | None:
        """The mail `email_id` as this inbox got it first; None if it did not get it by now, whatever the reason."""
        if not _is_id(email_id):
            return None
        copies = self._database.rows(_OWN_COPIES, email_id, self._address_id, self._latest)
        if not copies:
            return None
        copy_id, message_id, sent_at = copies[0]
        sender, subject, body = self._database.rows(
            "SELECT from_address, subject, body FROM email WHERE id = ?", email_id
        )[0]
        people = self._database.rows(
            "SELECT role, address FROM delivery JOIN address ON address.id = address_id WHERE email_id = ? AND copy_id = ?"
            " AND role IN ('to', 'cc') ORDER BY role, place, address",
            email_id,
            copy_id,
        )
        return EmailView(
            id=email_id,
            message_id=message_id,
            date=datetime.fromisoformat(sent_at),
            from_address=sender,
            to_addresses=tuple(address for role, address in people if role == "to"),
            cc_addresses=tuple(address for role, address in people if role == "cc"),
            subject=subject,
            body=body,
            thread=self._thread_of(email_id),
        )

    def _thread_of(self, email_id: int) -> tuple[int, ...]:
        """Ids of the other mails of the thread, the oldest first, as far as the headers of this inbox's own copies connect them."""
        rows = self._database.rows(
            "SELECT own.email_id, copy.id, copy.sent_at FROM thread"
            " CROSS JOIN delivery AS own ON own.email_id = thread.email_id AND own.address_id = ?"
            " CROSS JOIN copy ON copy.id = own.copy_id AND copy.sent_at <= ?"
            " WHERE thread_id = (SELECT thread_id FROM thread WHERE email_id = ?) ORDER BY copy.sent_at, own.email_id",
            self._address_id,
            self._latest,
            email_id,
        )
        mail_of = {copy_id: own_id for own_id, copy_id, _ in rows}
        if len(set(mail_of.values())) < 2:
            return ()
        named = self._database.rows(
            "SELECT copy_id, message_id FROM json_each(?) JOIN (SELECT * FROM alias UNION ALL SELECT message_id, copy_id"
            " FROM reply) ON copy_id = value",
            json.dumps(list(mail_of)),
        )
        mails_of_name: dict[str, set[int]] = {}
        names_of_mail: dict[int, set[str]] = {}
        for copy_id, message_id in named:
            mails_of_name.setdefault(message_id, set()).add(mail_of[copy_id])
            names_of_mail.setdefault(mail_of[copy_id], set()).add(message_id)
        found, to_visit = {email_id}, [email_id]
        while to_visit:
            for name in names_of_mail.get(to_visit.pop(), ()):
                to_visit += mails_of_name[name] - found
                found |= mails_of_name[name]
        return tuple(dict.fromkeys(own_id for own_id, _, _ in rows if own_id in found - {email_id}))

    def _best(
        self, sought: Sequence[str], limit: int, conditions: str, values: list[object]
    ) -> dict[int, tuple[float, str]]:
        """Ids of the mails that score highest and meet the conditions, best first, with score and earliest copy."""
        scores = self._scores(sought)
        query = _IN_TIME.format(conditions=conditions)
        found: list[tuple[float, str, int]] = []
        for batch in _batches(scores):
            rows = self._database.rows(query, json.dumps(batch), self._address_id, *values)
            found += sorted(((scores[email_id], copy, email_id) for email_id, copy in rows), reverse=True)
            if len(found) >= limit:
                break
        return {email_id: (score, copy) for score, copy, email_id in found[:limit]}

    def _scores(self, sought: Sequence[str]) -> dict[int, float]:
        """Map each mail of this mailbox that holds any of the words to the sum of their weights.

        A word weighs its inverse document frequency within the inbox (that of BM25, Robertson and Zaragoza 2009), and
        its bonuses if it is in the subject. How often a mail holds it and how long the mail is made the ranking of real
        questions no better, and SQLite's bm25 visits every mail of the database for them.
        """
        columns = ("body", "subject")
        matches = [f'inbox : "i{self._address_id}" AND {of} : "{word}"' for word in sought for of in columns]
        query = " UNION ALL ".join(_HOLDING.format(number=number) for number in range(len(matches)))
        holding = dict(self._database.rows(query, *matches))
        scores: dict[int, float] = {}
        for number in range(0, len(matches), 2):
            in_body = self._email_ids.intersection(json.loads(holding[number]))
            in_subject = self._email_ids.intersection(json.loads(holding[number + 1]))
            both = in_body & in_subject
            count = len(in_body) + len(in_subject) - len(both)
            weight = math.log(1 + (len(self._email_ids) - count + 0.5) / (count + 0.5))
            for email_id in in_body:
                scores[email_id] = scores.get(email_id, 0.0) + weight
            for email_id in in_subject:
                bonus = _SUBJECT_BONUS + (_BOTH_BONUS if email_id in both else 1.0)
                scores[email_id] = scores.get(email_id, 0.0) + weight * bonus
        return scores

    @cached_property
    def _email_ids(self) -> frozenset[int]:
        """Every mail of this mailbox: word weights, too, must not depend on mail that is still to come."""
        rows = self._database.rows(
            "SELECT DISTINCT delivery.email_id FROM delivery JOIN copy ON copy.id = copy_id WHERE address_id = ? AND sent_at <= ?",
            self._address_id,
            self._latest,
        )
        return frozenset(row[0] for row in rows)

    def _results(self, best: dict[int, tuple[float, str]], stems: frozenset[str]) -> list[SearchResult]:
        """The mails of `best` in its order; of equally good ones those last whose passage is a question."""
        rows = self._database.rows(
            "SELECT id, from_address, subject, body FROM email WHERE id IN (SELECT value FROM json_each(?))",
            json.dumps(list(best)),
        )
        copies = {email_id: copy.split("#") for email_id, (_, copy) in best.items()}
        message_ids = dict(
            self._database.rows(
                "SELECT id, message_id FROM copy WHERE id IN (SELECT value FROM json_each(?))",
                json.dumps([int(copy_id) for _, copy_id in copies.values()]),
            )
        )
        passages = {row[0]: passage(row[-1], stems) for row in rows}
        results = {
            email_id: SearchResult(
                id=email_id,
                message_id=message_ids[int(copies[email_id][1])],
                date=datetime.fromisoformat(copies[email_id][0]),
                from_address=sender,
                subject=subject,
                snippet=passages[email_id].shown,
            )
            for email_id, sender, subject, _ in rows
        }
        ranked = sorted(best, key=lambda email_id: (best[email_id][0], not passages[email_id].asks), reverse=True)
        return [results[email_id] for email_id in ranked]


def _batches(scores: dict[int, float]) -> Iterator[list[int]]:
    """The keys of `scores`, the highest scores first, in ever larger batches; equal scores are in the same one."""
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    begin, size = 0, _FIRST_BATCH
    while begin < len(ranked):
        end = min(begin + size, len(ranked))
        while end < len(ranked) and scores[ranked[end]] == scores[ranked[end - 1]]:
            end += 1
        yield ranked[begin:end]
        begin, size = end, size * 4


def _person(address: str) -> list[str]:
    """The values of `_IS_PERSON` for an address, or for the part of one before the @."""
    address = normalise_address(address)
    # "A" follows "@": what lies between them are the addresses that begin with `address` and an @.
    return [address, "", ""] if "@" in address else [address, f"{address}@", f"{address}A"]


def _is_id(value: object) -> bool:
    """Whether `value` can be the id of a mail at all: an integer that SQLite can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63
