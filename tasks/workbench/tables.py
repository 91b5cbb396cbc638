"""The benchmark's tables in SQLite: loaded once from a folder, and one private copy per rollout."""

from __future__ import annotations

import csv
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from training.errors import BadInput

MOMENT = "2023-11-30 00:00:00"
"""The present of every task."""
TODAY = date.fromisoformat(MOMENT[:10])

FILES = {
    "visits": "analytics_data.csv",
    "events": "calendar_events.csv",
    "customers": "customer_relationship_manager_data.csv",
    "emails": "emails.csv",
    "tasks": "project_tasks.csv",
    "directory": "email_addresses.csv",
}
COLUMNS = {
    table: tuple(columns.split())
    for table, columns in {
        "visits": "date_of_visit visitor_id page_views session_duration_seconds traffic_source user_engaged",
        "events": "event_id event_name participant_email event_start duration",
        "customers": "customer_id assigned_to_email customer_name customer_email customer_phone last_contact_date "
        "product_interest status follow_up_by notes",
        "emails": "email_id inbox/outbox sender/recipient subject sent_datetime body",
        "tasks": "task_id task_name assigned_to_email list_name due_date board",
        "directory": "email_address",
        "plots": "file_path",
    }.items()
}
_DATES = {"date_of_visit", "event_start", "last_contact_date", "follow_up_by", "sent_datetime", "due_date"}
_NUMBERS = {"session_duration_seconds", "event_id", "email_id", "task_id", "customer_id"}
"""Columns that tools calculate with."""
_ISO = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d)?")
"""Tools compare dates as text."""
_CHANGED = ("events", "emails", "plots", "tasks", "customers")
"""Tables that tools change. The outcome of a task is their content."""
_CASE_MATTERS = {"status", "list_name", "board"}

Record = dict[str, Any]
Row = tuple[Any, ...]
State = dict[str, list[Row]]
"""Rows of the changeable tables, in order."""


class Workspace:
    """A private copy of all tables."""

    def __init__(self, image: bytes) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.deserialize(image)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def records(self, table: str, where: str = "1", values: Sequence[Any] = (), order: str = "rowid") -> list[Record]:
        """Return the rows that meet a condition, by column."""
        columns = COLUMNS[table]
        named = ", ".join(f'"{column}"' for column in columns)
        rows = self._db.execute(f"SELECT {named} FROM {table} WHERE {where} ORDER BY {order}", values)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def execute(self, statement: str, *values: Any) -> int:
        """Execute a statement and return the number of changed rows."""
        return self._db.execute(statement, values).rowcount

    def largest_id(self, table: str) -> int:
        # The largest text, as in the original, not the largest number.
        (largest,) = self._db.execute(f"SELECT max({COLUMNS[table][0]}) FROM {table}").fetchone()
        return int(largest or 0)

    def add(self, table: str, record: Mapping[str, Any], label: int) -> None:
        """Append a row."""
        named = ", ".join(f'"{column}"' for column in record)
        marks = ", ".join("?" * len(record))
        self._db.execute(f"INSERT INTO {table} (label, {named}) VALUES (?, {marks})", (label, *record.values()))

    def label_anew(self, table: str) -> None:
        """Label the rows by their places, as pandas does with `ignore_index`."""
        place = f"SELECT count(*) FROM {table} AS earlier WHERE earlier.rowid < {table}.rowid"
        self._db.execute(f"UPDATE {table} SET label = ({place})")

    def state(self) -> State:
        """Return the content of the changeable tables."""
        return {table: self._db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for table in _CHANGED}


def same(left: State, right: State) -> bool:
    """Return whether two outcomes are the same for the benchmark."""
    return all(
        rows == right[table] or _comparable(table, rows) == _comparable(table, right[table])
        for table, rows in left.items()
    )


def _comparable(table: str, rows: Sequence[Row]) -> list[Row]:
    """Return rows without what the benchmark ignores: letter case, except in columns with fixed values."""
    keeps = [column in _CASE_MATTERS for column in ("label", "other", *COLUMNS[table])]
    return [
        tuple(
            value if keep or not isinstance(value, str) else value.lower()
            for keep, value in zip(keeps, row, strict=True)
        )
        for row in rows
    ]


class Tables:
    """The tables of a folder in the benchmark's layout.

    Raises:
        BadInput: a file or a column is missing, or a date or number is none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows = {table: list(_rows(folder / file, COLUMNS[table])) for table, file in FILES.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tables) and self.image == other.image

    def __hash__(self) -> int:
        return hash(self.image)

    @cached_property
    def image(self) -> bytes:
        """The database as SQLite's bytes. Copying them is much faster than inserting rows."""
        with sqlite3.connect(":memory:") as db:
            for table, columns in COLUMNS.items():
                typed = ", ".join(f'"{column}" TEXT' for column in columns)
                # `label` is pandas' row label and `other` holds fields of no column: the original compares both.
                db.execute(f"CREATE TABLE {table} (label INTEGER, other TEXT, {typed})")
                marks = ", ".join("?" * len(columns))
                rows = ((label, *row) for label, row in enumerate(self._rows.get(table, ())))
                db.executemany(f"INSERT INTO {table} VALUES (?, NULL, {marks})", rows)
            db.commit()
            return db.serialize()

    def workspace(self) -> Workspace:
        return Workspace(self.image)

    @cached_property
    def untouched(self) -> State:
        with self.workspace() as workspace:
            return workspace.state()

    @cached_property
    def records(self) -> dict[str, list[Record]]:
        """Rows of each table, by column."""
        with self.workspace() as workspace:
            return {table: workspace.records(table) for table in FILES}

    @cached_property
    def people(self) -> list[str]:
        """First names in the directory."""
        return list(dict.fromkeys(str(address).partition(".")[0] for (address,) in self._rows["directory"]))


def _rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[str | None, ...]]:
    """Yield the rows of a file in the order of `columns`; an empty cell is None."""
    # The directory has no header.
    for line, record in read_csv(file, columns, header=columns != COLUMNS["directory"]):
        for column in _DATES.intersection(columns):
            if record[column] and not (is_date(record[column]) and _ISO.fullmatch(record[column])):
                raise BadInput(
                    f"{file}, line {line}: {column} is no date: {record[column]!r}; write 2023-11-30 or 2023-11-30 09:00:00"
                )
        if "email_address" in columns and "@" not in record["email_address"]:
            raise BadInput(f"{file}, line {line}: no address: {record['email_address'][:80]!r}; it has no header")
        for column in _NUMBERS.intersection(columns):
            if not re.fullmatch(r"\d{1,18}", record[column]):
                raise BadInput(f"{file}, line {line}: {column} is no whole number: {record[column][:80]!r}")
        yield tuple(record[column] or None for column in columns)


def read_csv(file: Path, columns: Sequence[str], *, header: bool = True) -> list[tuple[int, dict[str, str]]]:
    """Return the records of a file with their lines.

    Raises:
        BadInput: it cannot be read, or lacks one of `columns`.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, None if header else list(columns))
            if missing := set(columns) - set(reader.fieldnames or ()):
                raise BadInput(f"{file}: column {min(missing)} is missing; expected {', '.join(columns)}")
            records = [(reader.line_num, record) for record in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{file}: cannot be read ({error.strerror if isinstance(error, OSError) else error}); "
            "workbench.folder must hold the benchmark's CSV files (docs/workbench.md)"
        ) from None
    for line, record in records:
        if None in record or None in record.values():
            raise BadInput(f"{file}, line {line}: expected {len(reader.fieldnames or ())} columns")
    return records


def is_date(text: str) -> bool:
    """Return whether a text is a date, perhaps with a time, in ISO format."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
