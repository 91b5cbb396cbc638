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


PLOT = 'analytics.create_plot.func(time_min="2023-11-01", time_max="2023-11-30", value_to_plot="total_visits", plot_type="bar")'
REMOVE = 'customer_relationship_manager.delete_customer.func(customer_id="0000000{}")'
ADD = (
    'customer_relationship_manager.add_customer.func(customer_name="Lee Roe", assigned_to_email="ann.lee@atlas.com", '
    'status="Lead")'
)


@pytest.mark.parametrize(
    ("calls", "reference", "likeness"),
    [
        ([DELETE, WON], [DELETE, WON], 1),
        ([LOOK], [DELETE], 0),
        ([], [], 0),
        ([DELETE, RENAME], [DELETE], 1 / 3),  # a changed row is one that is gone and one that is new
        ([RENAME], [RENAME.replace("Plans", "Goals")], 1 / 3),  # the right row, but not the right value
        ([SEND.replace("Bye", "So"), SEND], [SEND], 1 / 2),  # the number of an e-mail only says what was sent before
        ([PLOT, PLOT, PLOT, PLOT], [PLOT], 1 / 4),
        ([REMOVE.format(1)], [REMOVE.format(1), ADD], 1 / 2),  # adding a row after it labels all rows anew
        ([REMOVE.format(1), ADD], [ADD], 1 / 2),
    ],
)
def test_likeness(tables: Tables, calls: list[str], reference: list[str], likeness: float) -> None:
    judge = Judge(tables, [call for call in map(parse, reference) if call])
    assert judge.likeness(state_after(tables, [parse(call) for call in calls])) == pytest.approx(likeness)


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
