"""Build the mail database: read a source once, filter mails, join copies, write the full-text index."""

from __future__ import annotations

import errno
import hashlib
import json
import operator
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import BaseModel
from sqlite_utils import Database

from environment.attachments import with_attachments
from environment.errors import BadMail
from environment.mail_text import FIRST_DATE, LAST_DATE, normalise_addresses, one_line, storable, utc_without_zone
from environment.models import DroppedMail, Email
from environment.normal_form import indexed_form
from environment.scratch_file import ScratchFile
from environment.threads import root, threads
from environment.words import stem, words

SCHEMA_VERSION = 6
_SCHEMA = Path(__file__).with_name("schema.sql")
# Created once all rows are written: row by row, Message-IDs in random order would touch a page of the index each.
_INDEXES = (
    *(("alias", "message_id"), ("alias", "copy_id"), ("reply", "copy_id")),
    *(("delivery", "address_id"), ("delivery", "copy_id"), ("thread", "thread_id")),
)
APPLICATION_ID = 0x4D41494C  # "MAIL" in the SQLite header identifies our files

MAX_RECIPIENTS = 30
"""Mails with more distinct recipients are dropped: circulars, which would be in every inbox."""
_MAILS_PER_BATCH = 12_500
_CHARS_PER_BATCH = 50_000_000
_LISTED_PER_REASON = 1_000
_MAX_WHERE_CHARS = 300
_MAX_NAME_CHARS, _MAX_SUBJECT_CHARS, _MAX_MESSAGE_ID_CHARS = 200, 1_000, 1_000
_NO_MESSAGE_ID = "no-message-id.invalid"
"""Domain of the Message-IDs of mails that have none (RFC 2606)."""
_MAILS_PER_PROGRESS = 1_000
_CACHE_KB = 32 << 10
# Index every mail with a delivery after the given one: new mails, and mails with further copies. The latter are indexed
# again as a whole, because FTS5 keeps only the latest entry per word and mail.
_INDEX = """
    INSERT INTO email_fts (rowid, subject, body, sender, inbox)
    SELECT id, coalesce(indexed.subject, email.subject), coalesce(indexed.body, email.body), indexed.sender,
    (SELECT group_concat(token, ' ') FROM
     (SELECT DISTINCT 'i' || address_id AS token FROM delivery WHERE email_id = email.id))
    FROM email JOIN indexed USING (id)
    WHERE id IN (SELECT email_id FROM delivery NOT INDEXED WHERE rowid > ?) ORDER BY id
"""
# What the index holds of a mail, where that is not its text: NULL for the same.
_INDEXED = "CREATE TEMP TABLE indexed (id INTEGER PRIMARY KEY, subject TEXT, body TEXT, sender TEXT NOT NULL)"


class BuildReport(BaseModel):
    """Number of mails by what became of them: `read == kept + duplicates + sum(dropped.values())`."""

    read: int
    kept: int
    duplicates: int
    """Further copies of a kept mail; their Message-IDs are kept as aliases."""
    renamed: int
    """Kept mails and copies with the Message-ID of an earlier, different mail; cited as `MESSAGE-ID#DIGEST`."""
    dropped: dict[str, int]
    """Reason to number of mails."""
    listed: list[DroppedMail]
    """The first 1,000 dropped mails of each reason, in the order of the source."""
    inboxes: int
    """Addresses that sent or received a kept mail."""
    content_checksum: str
    """SHA-256 over every kept mail and copy, in the order of the source: the version of the data on any machine."""


def build_database(
    emails: Iterable[Email | DroppedMail],
    path: Path,
    *,
    owner: str | None = None,
    max_body_chars: int = 5_000,
    progress: Callable[[int, int | None], None] | None = None,
) -> BuildReport:
    """Write the mail database `path` from `emails` and report which mails were kept and why others were dropped.

    The text of copies (same subject, body and sender) is stored once. Each copy keeps its own date, recipients and Message-ID. One
    that repeats date and recipients of another leaves only its Message-ID, as an alias. A different mail with an earlier mail's
    Message-ID is kept and cited as `MESSAGE-ID#DIGEST`. A mail whose Message-ID is missing or has over 1,000 characters gets one
    that follows from its content. Subjects are cut at 1,000 characters. All are in the inbox of `owner`, as blind copies if need be.

    Dropped, counted and listed are mails without text and attachments or any address, without a plausible date (1980-01-02
    to 2039), with over `max_body_chars` or over `MAX_RECIPIENTS` distinct recipients, and the source's `DroppedMail`s.
    `progress(mails read, total or None)` is called every 1,000 mails and at the end; the total is an estimate if the source's
    iterator has only a length hint. Memory: about 400 bytes per mail, and 200 more per mail that names its thread.

    The file appears when it is complete. A failed build leaves nothing behind, and what a killed one left goes with the next. The
    user's umask says who may read the file. Raise BadMail when the disk is full or `path` cannot be written.
    """
    path = Path(path)
    try:
        scratch = ScratchFile(path.parent, f".{path.name.removeprefix('.')}.partial")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        report = _Builder(scratch.path, owner, max_body_chars).build(emails, progress)
        _publish(scratch.path, path)
    except sqlite3.OperationalError as error:
        raise _unwritable(path, error) from error
    finally:
        scratch.remove()
    return report


def _publish(partial: Path, path: Path) -> None:
    """Move the complete file to `path` atomically."""
    try:
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: Exception) -> BadMail:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in str(error):
        return BadMail(f"the disk is full: no room for the mail database in {path.parent}; free some space there")
    return BadMail(f"cannot write the mail database {path}: {getattr(error, 'strerror', None) or error}")


class _Builder:
    """One build: read mails once, in the order of the source, and write them in large batches."""

    def __init__(self, path: Path, owner: str | None, max_body_chars: int) -> None:
        self._owner = normalise_addresses([owner] if owner else [])
        self._max_body_chars = max_body_chars
        # This thread and the indexer's take turns: the indexer works while this thread reads the next batch.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # An incomplete file is never read and is deleted after a crash, so it needs no journal.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._connection.executescript(_SCHEMA.read_text())
        self._connection.execute(_INDEXED)
        # The indexes of the batches are merged once, at the end.
        self._connection.execute("INSERT INTO email_fts (email_fts, rank) VALUES ('automerge', 0)")
        self._connection.execute("BEGIN")
        self._addresses: dict[str, int] = {}
        self._kept: dict[bytes, int] = {}  # digest of what makes a mail the same -> id
        self._copies: dict[bytes, int] = {}  # digest of mail, date and people -> id of the copy
        self._senders: set[str] = set()
        self._message_ids: dict[bytes, int] = {}  # digest of a Message-ID -> the first mail that has it
        self._dropped: Counter[str] = Counter()
        self._listed: list[DroppedMail] = []
        self._checksum = hashlib.sha256(f"schema {SCHEMA_VERSION}\n".encode())
        self._joined: dict[str, str] = {}  # Message-ID -> another one of its thread, or itself
        self._duplicates = self._renamed = self._chars = 0
        self._rows: dict[str, list[tuple[object, ...]]] = {
            table: [] for table in ("email", "indexed", "copy", "alias", "delivery", "reply")
        }
        self._indexer = ThreadPoolExecutor(1)
        self._indexing: Future[object] | None = None

    def build(
        self, emails: Iterable[Email | DroppedMail], progress: Callable[[int, int | None], None] | None
    ) -> BuildReport:
        total = operator.length_hint(emails)
        source = iter(emails)
        read = 0
        try:
            for read, email in enumerate(source, start=1):
                if isinstance(email, DroppedMail):
                    self._drop(email)
                else:
                    self._add(email)
                if len(self._rows["copy"]) >= _MAILS_PER_BATCH or self._chars >= _CHARS_PER_BATCH:
                    self._flush()
                if progress and read % _MAILS_PER_PROGRESS == 0:
                    to_come = operator.length_hint(source)
                    progress(read, total or (read + to_come if to_come else None))
            self._flush()
            checksum = self._finish()
        finally:
            self._indexer.shutdown()
            self._connection.close()
        if progress:
            progress(read, total or None)
        return BuildReport(
            read=read,
            kept=len(self._kept),
            duplicates=self._duplicates,
            renamed=self._renamed,
            dropped=dict(sorted(self._dropped.items())),
            listed=self._listed,
            inboxes=len(self._addresses),
            content_checksum=checksum,
        )

    def _add(self, email: Email) -> None:
        message_id = storable(email.message_id).strip()
        written = storable(email.body).strip()
        body = with_attachments(written, email.attachments, self._max_body_chars)
        people: dict[str, list[str]] = {"from": normalise_addresses([email.from_address])}
        named = set()
        for role, addresses in (("to", email.to_addresses), ("cc", email.cc_addresses), ("bcc", email.bcc_addresses)):
            # Enron's bcc repeats its cc: a recipient counts once, in the first role.
            people[role] = [address for address in normalise_addresses(addresses) if address not in named]
            named.update(people[role])
        sent_at = _sent_at(email.date)
        reason, detail = "", ""
        if not body:
            reason = "no_body"
        elif len(written) > self._max_body_chars:
            reason, detail = "body_too_long", f"{len(written):,} characters"
        elif email.date is None:
            reason = "no_date"
        elif sent_at is None:
            reason, detail = "absurd_date", str(email.date)
        elif len(named) > MAX_RECIPIENTS:
            reason, detail = "too_many_recipients", f"{len(named):,} recipients"
        elif not named and not people["from"]:
            reason = "no_address"
        if reason or sent_at is None:
            self._drop(DroppedMail(reason=reason, where=_where(email), detail=detail))
            return

        people["bcc"] += [owner for owner in self._owner if owner not in named and owner not in people["from"]]
        subject = one_line(storable(email.subject))[:_MAX_SUBJECT_CHARS]
        sender = people["from"][0] if people["from"] else ""
        name = one_line(storable(email.from_name))[:_MAX_NAME_CHARS]
        # Copies with different names of the sender are different mails: each inbox shows the name that it received.
        content = _digest(subject, body, sender, *filter(None, [name]))
        known = self._kept.get(content)
        seconds = (sent_at - FIRST_DATE) // timedelta(seconds=1)
        email_id = len(self._kept) + 1 if known is None else known
        if known is None:
            self._kept[content] = email_id
            self._chars += len(subject) + len(body)
            self._rows["email"].append((email_id, sender, name, subject, body))
            self._rows["indexed"].append(
                (email_id, *self._indexed(subject, body, f"{name} {sender.partition('@')[0]}"))
            )
        else:
            self._duplicates += 1
        if not 0 < len(message_id) <= _MAX_MESSAGE_ID_CHARS:
            message_id = f"<{_digest(content.hex(), str(seconds), json.dumps(people)).hex()}@{_NO_MESSAGE_ID}>"
        cited_as = message_id
        if self._message_ids.setdefault(_digest(message_id), email_id) != email_id:
            cited_as = f"{message_id}#{content.hex()}"  # if it were dropped, mail of others would change this inbox
            self._renamed += 1
        replies_to = [storable(name) for name in email.replies_to if len(name) <= _MAX_MESSAGE_ID_CHARS]
        for earlier in replies_to:
            self._joined[root(self._joined, message_id)] = root(self._joined, earlier)
        envelope = json.dumps([seconds, people])
        self._checksum.update(content + json.dumps([message_id, seconds, people, replies_to]).encode())
        delivered = _digest(content.hex(), envelope)
        copy_id = self._copies.get(delivered)
        if copy_id is None:
            copy_id = self._copies[delivered] = len(self._copies) + 1
            self._rows["copy"].append((copy_id, email_id, cited_as, sent_at.isoformat(" ")))
            for role, ordered in people.items():
                for place, address in enumerate(ordered):
                    address_id = self._addresses.setdefault(address, len(self._addresses) + 1)
                    self._rows["delivery"].append((email_id, address_id, copy_id, role, place))
        self._rows["alias"] += [(name, copy_id) for name in dict.fromkeys((message_id, cited_as))]
        self._rows["reply"] += [(copy_id, earlier) for earlier in replies_to]

    def _indexed(self, subject: str, body: str, sender: str) -> tuple[str | None, str | None, str]:
        """Return what the index holds of subject, body and sender: None where it is the text itself."""
        forms = (None if (form := indexed_form(text)) is text else form for text in (subject, body))
        by = indexed_form(sender)
        self._senders.add(by)
        return next(forms), next(forms), by

    def _drop(self, mail: DroppedMail) -> None:
        self._dropped[mail.reason] += 1
        if self._dropped[mail.reason] <= _LISTED_PER_REASON:
            self._listed.append(mail)

    def _flush(self) -> None:
        """Write the mails read so far and start indexing them."""
        self._wait_for_indexer()
        indexed = self._connection.execute("SELECT coalesce(max(rowid), 0) FROM delivery").fetchone()
        run = self._connection.executemany
        run("INSERT INTO email VALUES (?, ?, ?, ?, ?)", self._rows["email"])
        run("INSERT INTO indexed VALUES (?, ?, ?, ?)", self._rows["indexed"])
        run("INSERT INTO copy VALUES (?, ?, ?, ?)", self._rows["copy"])
        run("INSERT INTO alias VALUES (?, ?)", self._rows["alias"])
        run("INSERT INTO delivery VALUES (?, ?, ?, ?, ?)", self._rows["delivery"])
        run("INSERT INTO reply VALUES (?, ?)", self._rows["reply"])
        for rows in self._rows.values():
            rows.clear()
        self._chars = 0
        # SQLite releases the GIL during this statement, so the next batch is read meanwhile.
        self._indexing = self._indexer.submit(self._connection.execute, _INDEX, indexed)

    def _wait_for_indexer(self) -> None:
        if self._indexing is not None:
            self._indexing.result()

    def _finish(self) -> str:
        """Finish the indexes and write the metadata. Return the checksum of the content."""
        self._wait_for_indexer()
        run = self._connection.execute
        run("COMMIT")
        # Before the threads, which look up every Message-ID.
        database = Database(self._connection)
        for table, column in _INDEXES:
            database.table(table).create_index([column])
        run("BEGIN")
        self._connection.executemany("INSERT INTO address VALUES (?, ?)", ((i, a) for a, i in self._addresses.items()))
        self._connection.executemany(
            "INSERT OR IGNORE INTO thread VALUES (?, ?)", list(threads(self._connection, self._joined))
        )
        stems = {known for sender in self._senders for word in words(sender) if (known := stem(word))}
        self._connection.executemany("INSERT INTO sender_word VALUES (?)", ((known,) for known in sorted(stems)))
        run("INSERT INTO email_fts (email_fts) VALUES ('optimize')")
        checksum = self._checksum.hexdigest()
        metadata = {"content_checksum": checksum, "emails": len(self._kept), "inboxes": len(self._addresses)}
        self._connection.executemany("INSERT INTO metadata VALUES (?, ?)", metadata.items())
        run("COMMIT")
        return checksum


def _sent_at(moment: datetime | None) -> datetime | None:
    """Return `moment` in UTC and whole seconds, or None if it is missing or not plausible."""
    if moment is None:
        return None
    try:
        moment = utc_without_zone(moment)
    except OverflowError:
        return None
    return moment if FIRST_DATE <= moment <= LAST_DATE else None


def _where(email: Email) -> str:
    return one_line(storable(f"{email.file_name} {email.message_id}"))[:_MAX_WHERE_CHARS]


def _digest(*parts: str) -> bytes:
    # `storable` removed NUL, so it separates the parts.
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
