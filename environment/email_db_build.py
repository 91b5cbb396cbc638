"""Writes the mail database: one pass over a source, filters, copies joined, full-text index. See `email_db`."""

from __future__ import annotations

import errno
import hashlib
import json
import operator
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from sqlite_utils import Database

from environment.email_text import (
    FIRST_DATE,
    LAST_DATE,
    normalise_addresses,
    one_line,
    storable,
    utc_without_zone,
)
from environment.errors import BadInput
from environment.models import DroppedMail, Email
from environment.search_text import TOKENIZER

SCHEMA_VERSION = 4
APPLICATION_ID = 0x4D41494C  # "MAIL" in the SQLite header: tells our files from any other SQLite file

_MAILS_PER_BATCH = 12_500
_LISTED_PER_REASON = 1_000
_MAX_WHERE_CHARS = 300
_MAILS_PER_PROGRESS = 1_000
_CACHE_KB = 32 << 10
# Every mail with a delivery after the one that is given: new mails, and mails with further copies. The latter are indexed again
# as a whole, because FTS5 keeps only the latest entry of a word and a mail.
_INDEX = """
    INSERT INTO email_fts (rowid, subject, body, inbox) SELECT id, subject, body,
    (SELECT group_concat(token, ' ') FROM
     (SELECT DISTINCT 'i' || address_id AS token FROM delivery WHERE email_id = email.id))
    FROM email WHERE id IN (SELECT email_id FROM delivery NOT INDEXED WHERE rowid > ?) ORDER BY id
"""


_Key = TypeVar("_Key", int, str)


class BuildReport(BaseModel):
    """What became of the mails that were read: `read == kept + duplicates + sum(dropped.values())`."""

    read: int
    kept: int
    duplicates: int
    """Further copies of a kept mail; their Message-IDs are kept as aliases."""
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
    max_body_chars: int = 5_000,
    max_recipients: int = 30,
    progress: Callable[[int, int | None], None] | None = None,
) -> BuildReport:
    """Write the mail database `path` from `emails` and say what was kept and what was dropped why.

    The text of copies (same subject, body and sender) is stored once. Each copy keeps its own date, recipients and
    Message-ID; one with the date and recipients of another leaves only its Message-ID, as an alias.

    Mails without Message-ID, body, anyone's address or a believable date (1980-01-02 to 2039), with a body over
    `max_body_chars` or over `max_recipients` distinct recipients
    are dropped, counted and listed, and so are the source's own `DroppedMail`s. `progress(mails so far, mails in all or None)`
    is called every 1,000 mails and at the end; a source whose iterator has a length hint may estimate the number in all.
    Memory: about 400 bytes a mail, and 200 more for one that names its thread.

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
        # Two threads take turns with it: this one, and the one that indexes a batch while this one reads the next.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # Nobody reads this file before it is complete, and one that is not complete is thrown away.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        _create_tables(Database(self._connection))
        # The index of each batch is merged with the others once, at the end.
        self._connection.execute("INSERT INTO email_fts (email_fts, rank) VALUES ('automerge', 0)")
        self._connection.execute("BEGIN")
        self._addresses: dict[str, int] = {}
        self._kept: dict[bytes, int] = {}  # digest of what makes a mail the same -> id
        self._copies: dict[bytes, int] = {}  # digest of mail, date and people -> id of the copy
        self._message_ids: set[bytes] = set()
        self._dropped: Counter[str] = Counter()
        self._listed: list[DroppedMail] = []
        self._checksum = hashlib.sha256(f"schema {SCHEMA_VERSION}\n".encode())
        self._joined: dict[str, str] = {}  # Message-ID -> another one of its thread, or itself
        self._duplicates = 0
        self._rows: dict[str, list[tuple[object, ...]]] = {
            "email": [],
            "copy": [],
            "alias": [],
            "delivery": [],
            "reply": [],
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
                if len(self._rows["copy"]) >= _MAILS_PER_BATCH:
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
            dropped=dict(sorted(self._dropped.items())),
            listed=self._listed,
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
        reason, detail = "", ""
        if not message_id:
            reason = "no_message_id"
        elif not body:
            reason = "no_body"
        elif len(body) > self._max_body_chars:
            reason, detail = "body_too_long", f"{len(body):,} characters"
        elif email.date is None:
            reason = "no_date"
        elif sent_at is None:
            reason, detail = "absurd_date", str(email.date)
        elif len(named) > self._max_recipients:
            reason, detail = "too_many_recipients", f"{len(named):,} recipients"
        elif not named and not people["from"]:
            reason = "no_address"
        if reason or sent_at is None:
            self._drop(DroppedMail(reason=reason, where=_where(email), detail=detail))
            return

        subject = one_line(storable(email.subject))
        sender = people["from"][0] if people["from"] else ""
        content = _digest(subject, body, sender)
        known = self._kept.get(content)
        id_digest = _digest(message_id)
        if id_digest in self._message_ids and known is None:
            self._drop(DroppedMail(reason="message_id_reused", where=_where(email)))
            return
        seconds = (sent_at - FIRST_DATE) // timedelta(seconds=1)
        email_id = len(self._kept) + 1 if known is None else known
        if known is None:
            self._kept[content] = email_id
            self._rows["email"].append((email_id, sender, subject, body))
        else:
            self._duplicates += 1
        self._message_ids.add(id_digest)
        replies_to = [storable(earlier) for earlier in email.replies_to]
        for earlier in replies_to:
            self._joined[_root(self._joined, message_id)] = _root(self._joined, earlier)
        envelope = json.dumps([seconds, people])
        self._checksum.update(content + json.dumps([message_id, seconds, people, replies_to]).encode())
        delivered = _digest(content.hex(), envelope)
        copy_id = self._copies.get(delivered)
        if copy_id is None:
            copy_id = self._copies[delivered] = len(self._copies) + 1
            self._rows["copy"].append((copy_id, email_id, message_id, sent_at.isoformat(" ")))
            for role, addresses in people.items():
                for place, address in enumerate(addresses):
                    address_id = self._addresses.setdefault(address, len(self._addresses) + 1)
                    self._rows["delivery"].append((email_id, address_id, copy_id, role, place))
        self._rows["alias"].append((message_id, copy_id))
        self._rows["reply"] += [(copy_id, earlier) for earlier in replies_to]

    def _threads(self) -> Iterator[tuple[int, int]]:
        """Every mail of a thread of several, and the smallest id of them. Copies of a mail join the threads that they are in."""
        mails_of: dict[str, set[int]] = {}
        for message_id in self._joined:
            found = self._connection.execute(
                "SELECT email_id FROM alias JOIN copy ON copy.id = copy_id WHERE alias.message_id = ? LIMIT 1",
                (message_id,),
            ).fetchone()
            if found:
                mails_of.setdefault(_root(self._joined, message_id), set()).add(found[0])
        joined: dict[int, int] = {}
        for email_ids in mails_of.values():
            first, *others = sorted(email_ids)
            for other in others:
                one, another = sorted((_root(joined, first), _root(joined, other)))
                joined[another] = one
        yield from ((email_id, _root(joined, email_id)) for email_id in sorted(joined))

    def _drop(self, mail: DroppedMail) -> None:
        self._dropped[mail.reason] += 1
        if self._dropped[mail.reason] <= _LISTED_PER_REASON:
            self._listed.append(mail)

    def _flush(self) -> None:
        """Write what has been read, and begin to index it."""
        self._wait_for_indexer()
        indexed = self._connection.execute("SELECT coalesce(max(rowid), 0) FROM delivery").fetchone()
        run = self._connection.executemany
        run("INSERT INTO email VALUES (?, ?, ?, ?)", self._rows["email"])
        run("INSERT INTO copy VALUES (?, ?, ?, ?)", self._rows["copy"])
        run("INSERT INTO alias VALUES (?, ?)", self._rows["alias"])
        run("INSERT INTO delivery VALUES (?, ?, ?, ?, ?)", self._rows["delivery"])
        run("INSERT INTO reply VALUES (?, ?)", self._rows["reply"])
        for rows in self._rows.values():
            rows.clear()
        # One statement, during which SQLite leaves Python's lock to the thread that reads.
        self._indexing = self._indexer.submit(self._connection.execute, _INDEX, indexed)

    def _wait_for_indexer(self) -> None:
        if self._indexing is not None:
            self._indexing.result()

    def _finish(self) -> str:
        """Finish the indexes and write the metadata. Returns the checksum of the content."""
        self._wait_for_indexer()
        run = self._connection.execute
        # In one go at the end: one by one, Message-IDs in no order would touch a page of the index each.
        run("CREATE INDEX alias_of_message ON alias (message_id)")
        run("CREATE INDEX alias_of_copy ON alias (copy_id)")
        run("CREATE INDEX reply_of_copy ON reply (copy_id)")
        self._connection.executemany("INSERT INTO address VALUES (?, ?)", ((i, a) for a, i in self._addresses.items()))
        self._connection.executemany("INSERT OR IGNORE INTO thread VALUES (?, ?)", list(self._threads()))
        run("CREATE INDEX delivery_of_address ON delivery (address_id)")
        run("CREATE INDEX mails_of_thread ON thread (thread_id)")
        run("INSERT INTO email_fts (email_fts) VALUES ('optimize')")
        checksum = self._checksum.hexdigest()
        metadata = {"content_checksum": checksum, "emails": len(self._kept), "inboxes": len(self._addresses)}
        self._connection.executemany("INSERT INTO metadata VALUES (?, ?)", metadata.items())
        run("COMMIT")
        return checksum


def _create_tables(database: Database) -> None:
    database["metadata"].create({"key": str, "value": str}, pk="key")
    database["email"].create(
        {"id": int, "from_address": str, "subject": str, "body": str},
        pk="id",
        not_null={"from_address", "subject", "body"},
    )
    database["copy"].create(
        {"id": int, "email_id": int, "message_id": str, "sent_at": str},
        pk="id",
        not_null={"email_id", "message_id", "sent_at"},
    )
    database["address"].create({"id": int, "address": str}, pk="id", not_null={"address"})
    database["address"].create_index(["address"], unique=True)
    database["alias"].create({"message_id": str, "copy_id": int}, not_null={"message_id", "copy_id"})
    # One row per copy and role of a person: someone who writes to themselves has two. A recipient counts where named first.
    database["delivery"].create(
        {"email_id": int, "address_id": int, "copy_id": int, "role": str, "place": int},
        pk=("email_id", "address_id", "copy_id", "role"),
    )
    database["reply"].create({"copy_id": int, "message_id": str}, not_null={"copy_id", "message_id"})
    database["thread"].create({"email_id": int, "thread_id": int}, pk="email_id")
    # Which mails hold a word in which column, and nothing else: no text, no places, no lengths.
    database.execute(
        "CREATE VIRTUAL TABLE email_fts USING fts5(subject, body, inbox,"
        f" content='', detail=column, columnsize=0, tokenize='{TOKENIZER}')"
    )


def _sent_at(moment: datetime | None) -> datetime | None:
    """`moment` in UTC and whole seconds, or None if it is missing or not to be believed."""
    if moment is None:
        return None
    try:
        moment = utc_without_zone(moment)
    except OverflowError:
        return None
    return moment if FIRST_DATE <= moment <= LAST_DATE else None


def _root(joined: dict[_Key, _Key], key: _Key) -> _Key:
    """The key that stands for everything that `key` has been joined with (union-find with path halving)."""
    while (other := joined.setdefault(key, key)) != key:
        joined[key] = joined[other]
        key = other
    return key


def _where(email: Email) -> str:
    return one_line(storable(f"{email.file_name} {email.message_id}"))[:_MAX_WHERE_CHARS]


def _digest(*parts: str) -> bytes:
    # What is stored holds no NUL.
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
