"""The mail database: one SQLite file that holds every mailbox, and the view of it that an agent is given.

`build_database` writes the file once; `MailDatabase` only ever reads it. `MailDatabase.mailbox(address, query_date)`
is one inbox at one moment, and the only thing that tools see: mail of other people and mail that has not been sent yet
cannot be found or read through it.

Schema: `email` (the kept copy of each mail), `alias` (every Message-ID of every copy), `address`, `delivery` (who
sent or received what) and `email_fts`, an FTS5 index of subject, body and `inbox`. The last is a column of tokens such
as `i17 i203`, one per sender or recipient, so that the limit to one inbox is part of the full-text query: its cost
follows the inbox, not the database. Deleting, changing and adding mail is not provided for: a build is a new file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import operator
import os
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel
from sqlite_utils import Database

from environment.email_text import (
    FIRST_DATE,
    LAST_DATE,
    normalise_address,
    normalise_addresses,
    one_line,
    parse_query_date,
    storable,
    utc_without_zone,
)
from environment.errors import BadInput
from environment.models import Email, EmailView, SearchResult
from environment.search_text import content_words, words

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x4D41494C  # "MAIL" in the SQLite header: tells our files from any other SQLite file

MAX_QUERY_WORDS = 20
MAX_RESULTS = 20
_MAX_QUERY_CHARS = 4_000
_SNIPPET_WORDS = 12
_MAX_SNIPPET_CHARS = 160
# bm25 weights of subject, body, inbox. A word in the subject says more about a mail than one in its body.
_SEARCH = """
    SELECT email.id FROM email_fts JOIN email ON email.id = email_fts.rowid
    WHERE email_fts MATCH ? AND email.sent_at BETWEEN ? AND ?
    ORDER BY bm25(email_fts, 2.0, 1.0, 0.0), email.sent_at DESC, email.id DESC LIMIT ?
"""
_ROWS_PER_FLUSH = 2_000
_MAILS_PER_PROGRESS = 1_000


class BuildReport(BaseModel):
    """What became of the mails that were read: `read == kept + duplicates + sum(dropped.values())`."""

    read: int
    kept: int
    duplicates: int
    """Further copies of a kept mail; their Message-IDs are kept as aliases."""
    dropped: dict[str, int]
    """Reason to number of mails."""
    inboxes: int
    """Addresses that sent or received a kept mail."""
    content_checksum: str
    """SHA-256 over everything that was kept: the version of the data, whatever machine built the file."""


def build_database(
    emails: Iterable[Email],
    path: Path,
    *,
    max_body_chars: int = 5_000,
    max_recipients: int = 30,
    progress: Callable[[int, int | None], None] | None = None,
) -> BuildReport:
    """Write the mail database `path` from `emails` and say what was kept and what was dropped why.

    Copies of a mail (same subject, body and sender) are stored once, as the earliest copy, delivered to the recipients
    of all; later copies leave their Message-IDs as aliases. Mails without Message-ID, body, anyone's address or a
    believable date (1980-01-02 to 2039), with a body over `max_body_chars` or over `max_recipients` distinct recipients
    are dropped and counted. `progress(mails so far, mails in all or None)` is called every 1,000 mails and at the end.
    Memory: about 300 bytes a mail.

    The file appears when it is complete and not before; a failed build leaves nothing. Raises BadInput when the disk is
    full or `path` cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(descriptor)
    partial = Path(name)
    try:
        report = _Builder(partial, max_body_chars, max_recipients).build(emails, progress)
        _publish(partial, path)
    except sqlite3.OperationalError as error:
        raise _unwritable(path, error) from error
    finally:
        partial.unlink(missing_ok=True)
    return report


def _publish(partial: Path, path: Path) -> None:
    """Make the complete file appear at `path` at once."""
    try:
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        os.chmod(partial, 0o644)  # mkstemp's file is for its owner alone
        os.replace(partial, path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> BadInput:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in str(error):
        return BadInput(f"the disk is full: no room for the mail database in {path.parent}; free some space there")
    return BadInput(f"cannot write the mail database {path}: {getattr(error, 'strerror', None) or error}")


class _Builder:
    """One build: reads mails once, in the order of the source, and writes them in large transactions."""

    def __init__(self, path: Path, max_body_chars: int, max_recipients: int) -> None:
        self._max_body_chars = max_body_chars
        self._max_recipients = max_recipients
        self._connection = sqlite3.connect(path, isolation_level=None)
        # Nobody reads this file before it is complete, and one that is not complete is thrown away.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        _create_tables(Database(self._connection))
        self._addresses: dict[str, int] = {}
        self._kept: dict[bytes, tuple[int, str]] = {}  # digest of what makes a mail the same -> id, sent_at
        self._message_ids: set[bytes] = set()
        self._dropped: Counter[str] = Counter()
        self._duplicates = 0
        self._rows: dict[str, list[tuple[object, ...]]] = {"email": [], "earlier": [], "alias": [], "delivery": []}

    def build(self, emails: Iterable[Email], progress: Callable[[int, int | None], None] | None) -> BuildReport:
        total = operator.length_hint(emails) or None
        read = 0
        try:
            for read, email in enumerate(emails, start=1):
                self._add(email)
                if len(self._rows["alias"]) >= _ROWS_PER_FLUSH:
                    self._flush()
                if progress and read % _MAILS_PER_PROGRESS == 0:
                    progress(read, total)
            self._flush()
            checksum = self._finish()
        finally:
            self._connection.close()
        if progress:
            progress(read, total)
        return BuildReport(
            read=read,
            kept=len(self._kept),
            duplicates=self._duplicates,
            dropped=dict(sorted(self._dropped.items())),
            inboxes=len(self._addresses),
            content_checksum=checksum,
        )

    def _add(self, email: Email) -> None:
        message_id = storable(email.message_id).strip()
        body = storable(email.body).strip()
        people: dict[str, list[str]] = {"from": normalise_addresses([email.from_address])}
        named = set()
        for role, addresses in (("to", email.to_addresses), ("cc", email.cc_addresses), ("bcc", email.bcc_addresses)):
            # Enron's bcc repeats its cc: everyone counts once, where they are named first.
            people[role] = [address for address in normalise_addresses(addresses) if address not in named]
            named.update(people[role])
        sent_at = _sent_at(email.date)
        reason = None
        if not message_id:
            reason = "no_message_id"
        elif not body:
            reason = "no_body"
        elif len(body) > self._max_body_chars:
            reason = "body_too_long"
        elif email.date is None:
            reason = "no_date"
        elif sent_at is None:
            reason = "absurd_date"
        elif len(named) > self._max_recipients:
            reason = "too_many_recipients"
        elif not named and not people["from"]:
            reason = "no_address"
        if reason or sent_at is None:
            self._dropped[reason or "absurd_date"] += 1
            return

        subject = one_line(storable(email.subject))
        sender = people["from"][0] if people["from"] else ""
        content = _digest(subject, body, sender)
        known = self._kept.get(content)
        id_digest = _digest(message_id)
        if id_digest in self._message_ids and known is None:
            self._dropped["message_id_reused"] += 1
            return
        self._message_ids.add(id_digest)
        if known is None:
            email_id = len(self._kept) + 1
            self._kept[content] = (email_id, sent_at)
            self._rows["email"].append((email_id, message_id, sent_at, sender, subject, body))
        else:
            email_id, kept_at = known
            self._duplicates += 1
            if sent_at < kept_at:
                self._kept[content] = (email_id, sent_at)
                self._rows["earlier"].append((message_id, sent_at, email_id))
        self._rows["alias"].append((message_id, email_id))
        for role, addresses in people.items():
            for place, address in enumerate(addresses):
                address_id = self._addresses.setdefault(address, len(self._addresses) + 1)
                self._rows["delivery"].append((email_id, address_id, role, place))

    def _flush(self) -> None:
        run = self._connection.executemany
        self._connection.execute("BEGIN")
        run("INSERT INTO email VALUES (?, ?, ?, ?, ?, ?)", self._rows["email"])
        run("UPDATE email SET message_id = ?, sent_at = ? WHERE id = ?", self._rows["earlier"])
        run("INSERT OR IGNORE INTO alias VALUES (?, ?)", self._rows["alias"])
        run("INSERT OR IGNORE INTO delivery VALUES (?, ?, ?, ?)", self._rows["delivery"])
        self._connection.execute("COMMIT")
        for rows in self._rows.values():
            rows.clear()

    def _finish(self) -> str:
        """Index everything and write the metadata. Returns the checksum of the content."""
        run = self._connection.execute
        run("BEGIN")
        self._connection.executemany("INSERT INTO address VALUES (?, ?)", ((i, a) for a, i in self._addresses.items()))
        run("CREATE INDEX delivery_of_address ON delivery (address_id)")
        run("INSERT INTO email_fts (email_fts) VALUES ('rebuild')")
        run("INSERT INTO email_fts (email_fts) VALUES ('optimize')")
        checksum = _content_checksum(self._connection)
        metadata = {"content_checksum": checksum, "emails": len(self._kept), "inboxes": len(self._addresses)}
        self._connection.executemany("INSERT INTO metadata VALUES (?, ?)", metadata.items())
        run("COMMIT")
        return checksum


def _create_tables(database: Database) -> None:
    database["metadata"].create({"key": str, "value": str}, pk="key")
    database["email"].create(
        {"id": int, "message_id": str, "sent_at": str, "from_address": str, "subject": str, "body": str},
        pk="id",
        not_null={"message_id", "sent_at", "from_address", "subject", "body"},
    )
    database["address"].create({"id": int, "address": str}, pk="id", not_null={"address"})
    database["address"].create_index(["address"], unique=True)
    database["alias"].create({"message_id": str, "email_id": int}, pk="message_id")
    # One row per mail and person: the sender's, else the first role they are named in.
    database["delivery"].create(
        {"email_id": int, "address_id": int, "role": str, "place": int}, pk=("email_id", "address_id")
    )
    database.create_view(
        "searchable_email",
        "SELECT id, subject, body,"
        " (SELECT group_concat('i' || address_id, ' ') FROM delivery WHERE email_id = email.id) AS inbox FROM email",
    )
    database.execute(
        "CREATE VIRTUAL TABLE email_fts USING fts5(subject, body, inbox,"
        " content='searchable_email', content_rowid='id', tokenize='porter unicode61')"
    )


def _sent_at(moment: datetime | None) -> str | None:
    """`moment` as it is stored (`2001-05-15 09:30:00`, UTC), or None if it is missing or not to be believed."""
    if moment is None:
        return None
    try:
        moment = utc_without_zone(moment)
    except OverflowError:
        return None
    return moment.isoformat(" ") if FIRST_DATE <= moment <= LAST_DATE else None


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).digest()


def _content_checksum(connection: sqlite3.Connection) -> str:
    checksum = hashlib.sha256(f"schema {SCHEMA_VERSION}\n".encode())
    for query in (
        "SELECT id, message_id, sent_at, from_address, subject, body FROM email ORDER BY id",
        "SELECT message_id, email_id FROM alias ORDER BY message_id",
        "SELECT email_id, address, role, place FROM delivery JOIN address ON address.id = address_id"
        " ORDER BY email_id, address",
    ):
        for row in connection.execute(query):
            checksum.update(json.dumps(row, ensure_ascii=False).encode())
            checksum.update(b"\n")
    return checksum.hexdigest()


class MailDatabase:
    """A finished mail database, read-only. Any thread may use it; each gets a connection of its own.

    Raises BadInput when `path` is missing, cut short, no mail database or one of another schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
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
        return [row[0] for row in self._rows("SELECT address FROM address ORDER BY address")]

    def mailbox(self, address: str, query_date: datetime) -> Mailbox:
        """The mail of `address` up to and including the moment `query_date`. Raises BadInput for an unknown address."""
        address_id = self._address_id(address)
        if address_id is None:
            shown = one_line(storable(address))[:80]
            raise BadInput(f"unknown inbox '{shown}': no mail in {self.path.name} is from or to this address")
        return Mailbox(self, address_id, normalise_address(address), parse_query_date(query_date))

    def resolve(self, message_id: str) -> int | None:
        """The id of the mail with this Message-ID, or of the kept copy of it. None if there is none."""
        rows = self._rows("SELECT email_id FROM alias WHERE message_id = ?", storable(message_id).strip())
        return rows[0][0] if rows else None

    def canonical(self, message_id: str) -> str | None:
        """The Message-ID of the kept copy of the mail with this Message-ID. None if there is none."""
        rows = self._rows(
            "SELECT email.message_id FROM alias JOIN email ON email.id = email_id WHERE alias.message_id = ?",
            storable(message_id).strip(),
        )
        return rows[0][0] if rows else None

    def delivered_to(self, email_id: int, address: str) -> bool:
        """Whether `address` sent or received the mail `email_id`."""
        address_id = self._address_id(address)
        query = "SELECT 1 FROM delivery WHERE email_id = ? AND address_id = ?"
        return address_id is not None and _is_id(email_id) and bool(self._rows(query, email_id, address_id))

    def date_of(self, email_id: int) -> datetime | None:
        """When the mail `email_id` was sent, in UTC. None if there is no such mail."""
        rows = self._rows("SELECT sent_at FROM email WHERE id = ?", email_id) if _is_id(email_id) else []
        return datetime.fromisoformat(rows[0][0]) if rows else None

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._local = threading.local()

    def _rows(self, query: str, *values: object) -> list[tuple]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            # immutable: the file never changes once it exists, so SQLite needs neither locks nor a writable folder.
            address = f"{self.path.resolve().as_uri()}?mode=ro&immutable=1"
            connection = sqlite3.connect(address, uri=True, check_same_thread=False)
            connection.execute("PRAGMA query_only = ON")
            with self._lock:
                self._connections.append(connection)
            self._local.connection = connection
        return connection.execute(query, values).fetchall()

    def _address_id(self, address: str) -> int | None:
        rows = self._rows("SELECT id FROM address WHERE address = ?", normalise_address(address))
        return rows[0][0] if rows else None

    def _checked_metadata(self) -> dict[str, str]:
        if not self.path.is_file():
            raise BadInput(f"there is no mail database at {self.path}; the data pipeline builds it")
        try:
            application_id = self._rows("PRAGMA application_id")[0][0]
            version = self._rows("PRAGMA user_version")[0][0]
            pages, page_size = (self._rows(f"PRAGMA {name}")[0][0] for name in ("page_count", "page_size"))
            if application_id != _APPLICATION_ID:
                problem = "is not a mail database"
            elif version != SCHEMA_VERSION:
                problem = f"has schema version {version}, and this code reads version {SCHEMA_VERSION}"
            elif self.path.stat().st_size != pages * page_size:
                problem = "is cut short"
            else:
                metadata: dict[str, str] = dict(self._rows("SELECT key, value FROM metadata"))
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
    ) -> list[SearchResult]:
        """The mails that match `keywords` best, best first; of equally good ones the newest first.

        Any of the words may match (in any inflection): a word that a mail lacks ranks it lower but does not hide it.
        At most 20 words count, stop words only where there are no others; all characters are data, none an operator.
        `max_results` is clamped to 1..20; `sent_before` and `sent_after` are inclusive.
        """
        query_words = _query_words(keywords)
        if not query_words:
            return []
        any_word = " OR ".join(f'"{word}"' for word in query_words)
        match = f'inbox : "i{self._address_id}" AND {{subject body}} : ({any_word})'
        latest = self._latest
        if sent_before is not None:
            latest = min(latest, utc_without_zone(sent_before).isoformat(" "))
        earliest = utc_without_zone(sent_after).isoformat(" ") if sent_after is not None else ""
        limit = min(max(int(max_results), 1), MAX_RESULTS)
        ids = [row[0] for row in self._database._rows(_SEARCH, match, earliest, latest, limit)]
        return [self._result(email_id, match) for email_id in ids]

    def read(self, email_id: int) -> EmailView | None:
        """The mail `email_id`; None if there is no such mail in this mailbox at this moment, whatever the reason."""
        if not _is_id(email_id):
            return None
        rows = self._database._rows(
            "SELECT message_id, sent_at, from_address, subject, body FROM email WHERE id = ? AND sent_at <= ?"
            " AND EXISTS (SELECT 1 FROM delivery WHERE email_id = email.id AND address_id = ?)",
            email_id,
            self._latest,
            self._address_id,
        )
        if not rows:
            return None
        message_id, sent_at, sender, subject, body = rows[0]
        people = self._database._rows(
            "SELECT role, address FROM delivery JOIN address ON address.id = address_id WHERE email_id = ?"
            " AND role IN ('to', 'cc') ORDER BY role, place, address",
            email_id,
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
        )

    def _result(self, email_id: int, match: str) -> SearchResult:
        # The snippet is made for the few mails that are shown, not for all that were ranked.
        message_id, sent_at, sender, subject, snippet = self._database._rows(
            "SELECT message_id, sent_at, from_address, email.subject, snippet(email_fts, 1, '', '', '…', ?)"
            " FROM email_fts JOIN email ON email.id = email_fts.rowid WHERE email_fts MATCH ? AND email_fts.rowid = ?",
            _SNIPPET_WORDS,
            match,
            email_id,
        )[0]
        snippet = one_line(snippet)
        return SearchResult(
            id=email_id,
            message_id=message_id,
            date=datetime.fromisoformat(sent_at),
            from_address=sender,
            subject=subject,
            snippet=snippet if len(snippet) <= _MAX_SNIPPET_CHARS else f"{snippet[:_MAX_SNIPPET_CHARS]}…",
        )


def _query_words(keywords: Sequence[str]) -> list[str]:
    """The words to look for, each once, at most 20: the content words if there are any, else all."""
    text = " ".join([keywords] if isinstance(keywords, str) else map(str, keywords))[:_MAX_QUERY_CHARS]
    about = [part for word in content_words(text) for part in words(word)]
    return list(dict.fromkeys(about or words(text)))[:MAX_QUERY_WORDS]


def _is_id(value: object) -> bool:
    """Whether `value` can be the id of a mail at all: an integer that SQLite can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63
