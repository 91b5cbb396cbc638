"""A small office in the benchmark's columns, with invented rows."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from tasks.workbench.tables import COLUMNS, FILES

ROWS: dict[str, list[Sequence[str]]] = {
    "visits": [
        ("2023-11-27", "0001", "3", "10", "direct", "True"),
        ("2023-11-28", "0002", "5", "20", "referral", "False"),
        ("2023-11-28", "0003", "2", "5", "direct", "True"),
    ],
    "events": [
        ("00000001", "Budget Talk", "ann.lee@atlas.com", "2023-11-29 10:00:00", "30"),
        ("00000002", "Budget Talk", "bob.ray@atlas.com", "2023-12-01 09:00:00", "60"),
        ("00000003", "Roadmap", "ann.lee@atlas.com", "2023-12-04 11:30:00", "90"),
    ],
    "customers": [
        (
            "00000001",
            "ann.lee@atlas.com",
            "Kim Day",
            "kim.day@acme",
            "",
            "2023-11-20",
            "Software",
            "Lead",
            "2023-12-05",
            "",
        ),
        (
            "00000002",
            "bob.ray@atlas.com",
            "Pat Fox",
            "pat.fox@acme",
            "1-2",
            "2023-11-01",
            "Training",
            "Won",
            "",
            "2023: a call.",
        ),
    ],
    "emails": [
        ("00000001", "inbox", "ann.lee@atlas.com", "Lunch", "2023-11-01 09:00:00", "Sam,\n\nShall we?"),
        ("00000002", "inbox", "bob.ray@atlas.com", "Budget", "2023-11-20 09:00:00", "See the numbers."),
        ("00000003", "inbox", "ann.lee@atlas.com", "Budget again", "2023-11-28 09:00:00", "Any news?"),
    ],
    "tasks": [
        ("00000001", "Fix the menu", "ann.lee@atlas.com", "Backlog", "2023-11-20", "Front end"),
        ("00000002", "Draw a logo", "bob.ray@atlas.com", "In Review", "2023-12-20", "Design"),
    ],
    "directory": [("ann.lee@atlas.com",), ("bob.ray@atlas.com",)],
}


def write_tables(folder: Path) -> Path:
    """Write the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in ROWS.items():
        header = [] if table == "directory" else [COLUMNS[table]]
        write_csv(folder / FILES[table], [*header, *rows])
    return folder


def write_csv(file: Path, rows: Sequence[Sequence[str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened, quoting=csv.QUOTE_ALL).writerows(rows)
