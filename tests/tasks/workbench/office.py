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


QUERY_COLUMNS = ("query", "answer", "base_template", "chosen_template", "domains")
_DELETE = 'email.delete_email.func(email_id="{}")'
_RENAME = 'calendar.update_event.func(event_id="{}", field="event_name", new_value="Plans")'
TASKS: dict[str, list[tuple[str, list[str], str, list[str]]]] = {
    "email": [
        ("Delete my last email from ann", [_DELETE.format("00000003")], "Delete my last email from {name}", ["email"]),
        ("Delete my last email from bob", [_DELETE.format("00000002")], "Delete my last email from {name}", ["email"]),
        (
            "Forward my last email from bob to ann",
            ['email.forward_email.func(email_id="00000002", recipient="ann.lee@atlas.com")'],
            "Forward my last email from {name} to {name}",
            ["email"],
        ),
        (
            "If bob has not sent me any emails in the past 3 days, delete the last one from ann",
            [_DELETE.format("00000003")],
            "If {name} has not sent me ...",
            ["email"],
        ),
    ],
    "calendar": [
        (
            "Rename my next meeting with ann to Plans",
            [_RENAME.format("00000003")],
            "Rename my next meeting",
            ["calendar"],
        ),
        (
            "Cancel my next budget talk",
            ['calendar.delete_event.func(event_id="00000002")'],
            "Cancel my next",
            ["calendar"],
        ),
        ("Cancel the meetings on Sunday", [], "Cancel the meetings on {day}", ["calendar"]),
    ],
    "multi_domain": [
        (
            "Make Kim Day a won customer and move all of bob's tasks in review to completed",
            [
                'customer_relationship_manager.update_customer.func(customer_id="00000001", field="status", new_value="Won")',
                'project_management.update_task.func(task_id="00000002", field="list_name", new_value="Completed")',
            ],
            "Make {customer} ...",
            ["crm", "project_management"],
        ),
    ],
}


def write_office(folder: Path) -> Path:
    """Write tables, tasks, and the calls of a published model, which did the first task of each domain."""
    write_tables(folder)
    (folder / "queries_and_answers").mkdir()
    (folder / "published").mkdir()
    runs = []
    for domain, tasks in TASKS.items():
        rows = [(query, str(answer), template, template, str(kits)) for query, answer, template, kits in tasks]
        write_csv(folder / "queries_and_answers" / f"{domain}_queries_and_answers.csv", [QUERY_COLUMNS, *rows])
        for number, (query, answer, _, _) in enumerate(tasks):
            done = int(number == 0 or not answer)
            runs.append((domain, query, str(answer if done else []), "", str(done), "0"))
    head = ("domain", "query", "function_calls", "error", "correct", "side_effects")
    write_csv(folder / "published" / "some-model.csv", [head, *runs])
    return folder


def write_csv(file: Path, rows: Sequence[Sequence[str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened, quoting=csv.QUOTE_ALL).writerows(rows)
