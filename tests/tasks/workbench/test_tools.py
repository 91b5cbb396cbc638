"""The benchmark's tools on invented tables: what they say, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.workbench.tables import Tables, Workspace
from tasks.workbench.tools import call, published, tool_schemas
from tests.tasks.workbench.office import write_tables


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(write_tables(tmp_path_factory.mktemp("office")))


@pytest.fixture
def workspace(tables: Tables) -> Iterator[Workspace]:
    with tables.workspace() as opened:
        yield opened


def test_the_tools_are_those_of_the_benchmark() -> None:
    assert len(published()) == 27
    names = [schema["function"]["name"] for schema in tool_schemas(["email"])]
    assert names[0] == "email.get_email_information_by_id" and names[-1] == "company_directory.find_email_address"
    assert len(names) == 7


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("calendar.get_event_information_by_id", {"event_id": "00000001", "field": "duration"}, "duration\n30"),
        ("calendar.get_event_information_by_id", {"event_id": "00000001", "field": "place"}, "Field not found."),
        ("calendar.get_event_information_by_id", {"event_id": "00000001"}, "Field not provided."),
        ("email.get_email_information_by_id", {"email_id": "9", "field": "body"}, "Email not found."),
        ("calendar.search_events", {"query": "none"}, "No events found."),
        ("calendar.search_events", {"time_min": "2023-13-01"}, "time_min is no date: '2023-13-01'. Format: YYYY-MM-DD"),
        ("calendar.create_event", {"event_name": "Tea"}, "Participant email not provided."),
        ("calendar.delete_event", {"event_id": "9"}, "Event not found."),
        ("email.send_email", {"recipient": "ann", "subject": "a", "body": "b"}, "Invalid recipient email address."),
        ("email.search_emails", {"query": "nobody"}, "No emails found."),
        ("email.search_emails", {"query": "budget " * 2000}, "all inbox/outbox: inbox\nemail_id"),
        ("email.search_emails", {"query": "budget nobody " * 2000}, "No emails found."),
        ("analytics.total_visits_count", {"time_min": "2023-11-28"}, "2023-11-28: 2"),
        ("analytics.engaged_users_count", {}, "2023-11-27: 1, 28: 1"),
        ("analytics.traffic_source_count", {"traffic_source": "direct"}, "2023-11-27: 1, 28: 1"),
        ("analytics.get_average_session_duration", {"time_min": "2023-11-28"}, "2023-11-28: 12.5"),
        ("analytics.get_visitor_information_by_id", {"visitor_id": "7"}, "Visitor not found."),
        ("analytics.create_plot", {"time_min": "2023-11-01"}, "End date not provided."),
        (
            "project_management.search_tasks",
            {},
            "No search parameters provided. Please provide at least one parameter.",
        ),
        ("project_management.create_task", {"task_name": "Rest"}, "Missing task details."),
        ("customer_relationship_manager.search_customers", {"follow_up_by_max": "soon"}, "follow_up_by_max is no date"),
        (
            "customer_relationship_manager.delete_customer",
            {"customer_id": "00000001"},
            "Customer deleted successfully.",
        ),
        ("company_directory.find_email_address", {"name": "Ann"}, "ann.lee@atlas.com"),
        ("company_directory.find_email_address", {"name": "zoe"}, "No employee found with that name."),
        ("calendar.cancel", {}, "Invalid call: there is no tool calendar.cancel."),
        ("calendar.delete_event", {"id": "1"}, "Invalid call: calendar.delete_event has no argument id"),
        ("email.delete_email", {"email_id": None}, "Email ID not provided."),
    ],
)
def test_a_call_says(workspace: Workspace, name: str, arguments: dict[str, str], said: str) -> None:
    assert call(workspace, name, arguments).startswith(said)


def test_nothing_can_follow_an_id_that_is_no_number(workspace: Workspace) -> None:
    renamed = {"event_id": "00000001", "field": "event_id", "new_value": "zzz"}
    assert call(workspace, "calendar.update_event", renamed) == "Event updated successfully."
    tea = {"event_name": "Tea", "participant_email": "a@x.y", "event_start": "2023-12-05 09:00:00", "duration": "30"}
    assert call(workspace, "calendar.create_event", tea) == "The largest ID is not a number."


def test_searches_match_any_case_and_keep_their_limits(workspace: Workspace) -> None:
    found = call(workspace, "calendar.search_events", {"query": "BUDGET", "time_min": "2023-11-30 00:00:00"})
    assert found.splitlines()[1:] == ["00000002 | Budget Talk | bob.ray@atlas.com | 2023-12-01 09:00:00 | 60"]
    newest = call(workspace, "email.search_emails", {"query": "budget", "date_min": "2023-11-20"})
    assert [line[:8] for line in newest.splitlines()[2:]] == ["00000003", "00000002"]
    customers = call(
        workspace,
        "customer_relationship_manager.search_customers",
        {"status": "won", "last_contact_date_max": "2023-11-01"},
    )
    assert customers.splitlines()[1].startswith("00000002 | bob.ray@atlas.com | Pat Fox")


@pytest.mark.parametrize(
    ("name", "arguments", "table", "expected"),
    [
        (
            "calendar.create_event",
            {
                "event_name": "Tea",
                "participant_email": "ANN@x.y",
                "event_start": "2023-12-05 09:00:00",
                "duration": "30",
            },
            "events",
            {"event_id": "00000004", "participant_email": "ann@x.y"},
        ),
        (
            "calendar.update_event",
            {"event_id": "00000003", "field": "event_name", "new_value": "Plans"},
            "events",
            {"event_name": "Plans"},
        ),
        (
            "email.send_email",
            {"recipient": "Z@x.y", "subject": "Hi", "body": "Bye"},
            "emails",
            {"email_id": "4", "inbox/outbox": "outbox", "sender/recipient": "z@x.y"},
        ),
        (
            "email.forward_email",
            {"email_id": "00000002", "recipient": "z@x.y"},
            "emails",
            {"subject": "FW: Budget", "body": "See the numbers."},
        ),
        (
            "email.reply_email",
            {"email_id": "00000001", "body": "Yes"},
            "emails",
            {"sender/recipient": "ann.lee@atlas.com", "subject": "Lunch", "body": "Yes"},
        ),
        (
            "analytics.create_plot",
            {"time_min": "2023-11-01", "time_max": "2023-11-29", "value_to_plot": "visits_direct", "plot_type": "bar"},
            "plots",
            {"file_path": "plots/2023-11-01_2023-11-29_visits_direct_bar.png"},
        ),
        (
            "project_management.create_task",
            {
                "task_name": "Rest",
                "assigned_to_email": "Ann.Lee@atlas.com",
                "list_name": "Backlog",
                "due_date": "2023-12-08",
                "board": "Design",
            },
            "tasks",
            {"task_id": "00000003", "assigned_to_email": "ann.lee@atlas.com"},
        ),
        (
            "customer_relationship_manager.add_customer",
            {"customer_name": "Jo Lin", "assigned_to_email": "ann.lee@atlas.com", "status": "Lead"},
            "customers",
            {"customer_id": "00000003", "customer_phone": None, "notes": ""},
        ),
        (
            "customer_relationship_manager.update_customer",
            {"customer_id": "00000002", "field": "status", "new_value": "Lost"},
            "customers",
            {"status": "Lost"},
        ),
    ],
)
def test_an_action_leaves(
    workspace: Workspace, name: str, arguments: dict[str, str], table: str, expected: dict[str, str | None]
) -> None:
    call(workspace, name, arguments)
    last = workspace.records(table)[-1]
    assert {column: last[column] for column in expected} == expected


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("project_management.update_task", {"field": "list_name", "new_value": "Done"}, "List not valid."),
        ("project_management.update_task", {"field": "assigned_to_email", "new_value": "x@y.z"}, "Assignee email not"),
        ("project_management.update_task", {"field": "size", "new_value": "big"}, "Field not valid."),
        ("customer_relationship_manager.update_customer", {"field": "status", "new_value": "won"}, "Status not valid."),
    ],
)
def test_an_update_is_refused_and_changes_nothing(
    tables: Tables, workspace: Workspace, name: str, arguments: dict[str, str], said: str
) -> None:
    id = f"{'task' if 'task' in name else 'customer'}_id"
    assert call(workspace, name, {id: "00000001", **arguments}).startswith(said)
    assert workspace.state() == tables.untouched


def test_workspaces_do_not_see_each_other(tables: Tables, workspace: Workspace) -> None:
    call(workspace, "email.delete_email", {"email_id": "00000001"})
    with tables.workspace() as other:
        assert len(other.records("emails")) == 3
    assert len(workspace.records("emails")) == 2
