"""The obvious design, as a baseline: FTS5 over subject and body, keywords AND-ed, newest first.

A recipients table says which mails belong to the caller; tools show Message-IDs. Schema, indexes, pragmas, per-row inserts
and output follow the public e-mail agent tutorials (ART-E).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from environment.models import Email

MAX_RESULTS = 10
_MAX_BODY_CHARS = 5_000
_MAX_RECIPIENTS = 30
_SCHEMA = """
    CREATE TABLE emails (
        id INTEGER PRIMARY KEY AUTOINCREMENT, message_id TEXT UNIQUE, subject TEXT, from_address TEXT, date TEXT,
        body TEXT, file_name TEXT
    );
    CREATE TABLE recipients (email_id INTEGER, recipient_address TEXT, recipient_type TEXT);
"""
_INDEXES = """
    CREATE INDEX idx_emails_from ON emails (from_address);
    CREATE INDEX idx_emails_date ON emails (date);
    CREATE INDEX idx_recipients_address ON recipients (recipient_address);
    CREATE INDEX idx_recipients_type ON recipients (recipient_type);
    CREATE INDEX idx_recipients_email_id ON recipients (email_id);
    CREATE INDEX idx_recipients_address_email ON recipients (recipient_address, email_id);
    CREATE VIRTUAL TABLE emails_fts USING fts5(subject, body, content='emails', content_rowid='id');
    INSERT INTO emails_fts (emails_fts) VALUES ('rebuild');
"""
_SEARCH = """
    SELECT e.message_id, snippet(emails_fts, -1, '<b>', '</b>', ' ... ', 15)
    FROM emails e JOIN emails_fts fts ON e.id = fts.rowid
    WHERE emails_fts MATCH ? AND e.date < ? AND (
        e.from_address = ?
        OR EXISTS (SELECT 1 FROM recipients r WHERE r.recipient_address = ? AND r.email_id = e.id)
    )
    ORDER BY e.date DESC LIMIT ?
"""


@dataclass(frozen=True)
class Hit:
    message_id: str
    snippet: str


def build(emails: Iterable[Email], path: Path) -> int:
    """Write the database `path`. Return how many mails it kept."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(_SCHEMA)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")
    connection.execute("BEGIN")
    seen: set[tuple[str, str, str]] = set()
    for email in emails:
        recipients = (*email.to_addresses, *email.cc_addresses, *email.bcc_addresses)
        content = (email.subject, email.body, email.from_address)
        if len(email.body) > _MAX_BODY_CHARS or len(recipients) > _MAX_RECIPIENTS or content in seen:
            continue
        seen.add(content)
        row = connection.execute(
            "INSERT INTO emails (message_id, subject, from_address, date, body, file_name) VALUES (?, ?, ?, ?, ?, ?)",
            (
                email.message_id,
                email.subject,
                email.from_address,
                f"{email.date:%Y-%m-%d %H:%M:%S}",
                email.body,
                email.file_name,
            ),
        )
        people = [
            (row.lastrowid, address, role)
            for role, addresses in (
                ("to", email.to_addresses),
                ("cc", email.cc_addresses),
                ("bcc", email.bcc_addresses),
            )
            for address in addresses
        ]
        connection.executemany("INSERT INTO recipients VALUES (?, ?, ?)", people)
    connection.execute("COMMIT")
    connection.executescript(_INDEXES)
    connection.close()
    return len(seen)


class ObviousMailbox:
    """Search and read in such a database."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)

    def search(self, inbox: str, before: datetime, keywords: list[str]) -> list[Hit]:
        """Return the newest mails of `inbox` before a moment that hold all keywords, at most ten."""
        match = " ".join('"' + word.replace('"', '""') + '"' for word in keywords)
        values = (match, before.isoformat(" "), inbox, inbox, MAX_RESULTS)
        return [Hit(*row) for row in self._connection.execute(_SEARCH, values)]

    def read(self, message_id: str) -> str:
        """Return a mail as its tool shows it: every field, as JSON."""
        columns = "id, message_id, date, subject, from_address, body, file_name"
        row = self._connection.execute(f"SELECT {columns} FROM emails WHERE message_id = ?", (message_id,)).fetchone()
        mail = dict(zip(columns.split(", "), row, strict=True))
        people: dict[str, list[str]] = {"to_addresses": [], "cc_addresses": [], "bcc_addresses": []}
        query = "SELECT recipient_type, recipient_address FROM recipients WHERE email_id = ?"
        for role, address in self._connection.execute(query, (mail.pop("id"),)):
            people[f"{role}_addresses"].append(address)
        return json.dumps(mail | people, ensure_ascii=False)

    @staticmethod
    def show(hits: list[Hit]) -> str:
        """Return the observation of a search."""
        return json.dumps([asdict(hit) for hit in hits], ensure_ascii=False)

    def close(self) -> None:
        self._connection.close()
