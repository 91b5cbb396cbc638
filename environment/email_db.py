"""The mail database: one read-only SQLite file that holds every mailbox.

`build_database` writes the file once. `MailDatabase.mailbox(address, query_date)` returns one inbox at one moment. The
agent's tools see nothing else, so mail of other people and mail sent later can neither be found nor read.

`schema.sql` documents the tables, `search.py` holds the queries of a mailbox.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from datetime import datetime
from pathlib import Path

from environment.email_db_build import APPLICATION_ID, SCHEMA_VERSION, BuildReport, build_database
from environment.errors import BadMail, QueryTimeout
from environment.mail_text import normalise_address, one_line, parse_query_date, storable, utc_without_zone
from environment.search import Mailbox, is_email_id

__all__ = ["BuildReport", "MailDatabase", "Mailbox", "build_database", "parse_query_date"]

_QUERY_SECONDS = 10.0
_STEPS_PER_TIME_CHECK = 10_000
_NAMED = "SELECT copy.email_id FROM alias JOIN copy ON copy.id = alias.copy_id"
# Of two mails of an inbox with one Message-ID, it names the one that is cited so: the other is cited with a digest.
_IN_INBOX = """
    JOIN delivery AS own ON own.email_id = copy.email_id AND own.address_id = ? WHERE alias.message_id = ?
    ORDER BY own.copy_id != copy.id, copy.message_id != alias.message_id, alias.rowid LIMIT 1
"""


class MailDatabase:
    """A finished mail database, read-only and thread-safe: every thread gets a connection of its own.

    Raise BadMail when `path` is missing, truncated, not a mail database or of another schema version, and QueryTimeout
    for a query that computes for longer than `query_seconds`.
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
        """SHA-256 over all mails, recipients and aliases, computed by the build."""
        return self._metadata["content_checksum"]

    def email_count(self) -> int:
        """Return the number of mails. All copies of a mail count as one."""
        return int(self._metadata["emails"])

    def inboxes(self) -> list[str]:
        """Return every address that sent or received mail, sorted."""
        return [row[0] for row in self.rows("SELECT address FROM address ORDER BY address")]

    def knows(self, address: str) -> bool:
        """Return whether there is mail from or to this address."""
        return self._address_id(address) is not None

    def inboxes_by_size(self) -> list[str]:
        """Return every address that sent or received mail, those with the most mail first."""
        query = (
            "SELECT address FROM address JOIN delivery ON address_id = address.id"
            " GROUP BY address.id ORDER BY count(*) DESC, address"
        )
        return [row[0] for row in self.rows(query)]

    def mailbox(self, address: str, query_date: datetime) -> Mailbox:
        """Return the mailbox of `address` as of `query_date` (inclusive). Raise BadMail for an unknown address."""
        address_id = self._address_id(address)
        if address_id is None:
            shown = one_line(storable(address))[:80]
            raise BadMail(f"unknown inbox '{shown}': no mail in {self.path.name} is from or to this address")
        return Mailbox(self, address_id, normalise_address(address), utc_without_zone(query_date))

    def resolve(self, message_id: str, address: str | None = None) -> int | None:
        """Return the id of the first mail that has a copy with this Message-ID, or None.

        With `address`, only mails of its inbox count, and its own copies come before copies of other people.
        """
        name = storable(message_id).strip()
        if address is None:
            rows = self.rows(f"{_NAMED} WHERE alias.message_id = ? ORDER BY alias.rowid LIMIT 1", name)
        else:
            rows = self.rows(f"{_NAMED} {_IN_INBOX}", self._address_id(address), name)
        return rows[0][0] if rows else None

    def delivered_to(self, email_id: int, address: str) -> bool:
        """Return whether `address` sent or received a copy of the mail `email_id` at any date."""
        address_id = self._address_id(address)
        query = "SELECT 1 FROM delivery WHERE email_id = ? AND address_id = ? LIMIT 1"
        return address_id is not None and is_email_id(email_id) and bool(self.rows(query, email_id, address_id))

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._local = threading.local()

    def rows(self, query: str, *values: object) -> list[tuple]:
        """Return the rows of an SQL query. Raise QueryTimeout when it computes for longer than `query_seconds`."""
        connection = self._connection()
        # Processor time, not wall time: a search must not fail because the machine is busy.
        self._local.deadline = time.thread_time() + self._query_seconds
        try:
            return connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise QueryTimeout(f"a query of {self.path.name} took longer than {self._query_seconds:g} s") from None
            raise

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection."""
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
            raise BadMail(f"there is no mail database at {self.path}; the data pipeline builds it")
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
        raise BadMail(f"{self.path} {problem}; run the data pipeline again to build it")
