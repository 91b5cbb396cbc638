"""Verdicts on outcomes, including what the original compares besides rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.workbench.judge import Judge, Verdict, parse, state_after
from tasks.workbench.tables import Tables
from tests.tasks.workbench.office import write_tables

DELETE = 'email.delete_email.func(email_id="00000001")'
SEND = 'email.send_email.func(recipient="ann.lee@atlas.com", subject="Hi", body="Bye")'
RENAME = 'calendar.update_event.func(event_id="00000003", field="event_name", new_value="Plans")'
WON = 'customer_relationship_manager.update_customer.func(customer_id="00000001", field="status", new_value="Won")'
LOOK = 'company_directory.find_email_address.func(name="ann")'
RIGHT, UNDONE, HARM = Verdict(True, False), Verdict(False, False), Verdict(False, True)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(write_tables(tmp_path_factory.mktemp("office")))


@pytest.mark.parametrize(
    ("calls", "reference", "verdict"),
    [
        ([LOOK, DELETE], [DELETE], RIGHT),
        ([LOOK], [DELETE], UNDONE),
        ([], [], RIGHT),
        ([DELETE], [], HARM),
        ([DELETE, WON], [DELETE], HARM),
        ([RENAME.replace("Plans", "PLANS")], [RENAME], RIGHT),
        ([WON.replace("Won", "won")], [WON], UNDONE),
        ([WON.replace("status", "notes")], [WON], HARM),
        ([RENAME.replace("event_name", "title")], [], HARM),  # the original adds a column
        ([DELETE.replace("delete", "erase"), DELETE], [DELETE], RIGHT),  # a call that fails is skipped
        ([DELETE.replace("email_id", "id")], [DELETE], UNDONE),
        ([SEND.replace("Bye", "Good\nbye")], [SEND.replace("Bye", r"Good\nbye")], UNDONE),  # Python cannot read it
        ([DELETE, SEND], [SEND, DELETE], HARM),  # the email overwrites an older one
    ],
)
def test_verdict(tables: Tables, calls: list[str], reference: list[str], verdict: Verdict) -> None:
    judge = Judge(tables, [call for call in map(parse, reference) if call])
    assert judge.verdict(state_after(tables, [parse(call) for call in calls])) == verdict


def test_an_episode_that_failed_is_not_correct(tables: Tables) -> None:
    assert Judge(tables, []).verdict(tables.untouched, failed=True) == UNDONE


@pytest.mark.parametrize(
    "text",
    [
        *("", "open(", "print(1)", "a.b(c=1)", "a.b.func('x')", "a.b.func(x=print)", "a.b.func(x={[]: 1})"),
        *(f"a.b.func(x={'-' * 100_000}1)", f"a.b.func(x={'1+' * 9_000}1)", r"a.b.func(x='\ud800')"),
    ],
)
def test_what_is_no_call_is_not_read(text: str) -> None:
    assert parse(text) is None


def test_the_folder_is_not_changed(tables: Tables, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in tables.folder.iterdir()}
    state_after(tables, [parse(DELETE)])
    assert before == {file.name: file.read_bytes() for file in tables.folder.iterdir()}
