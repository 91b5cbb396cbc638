"""The benchmark's tools, with the names, arguments and effects that it published.

A call never raises on what a policy writes. It returns a line that says what is wrong, as in the original. Actions check no
more than the original does, because the judge compares what they leave behind.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from tasks.workbench.prompts import load
from tasks.workbench.tables import COLUMNS, MOMENT, Record, Workspace, is_date

FOUND = 5
"""Records that a search returns at most, except of tasks."""
SOURCES = ("direct", "referral", "search engine", "social media")
METRICS = {
    "total visits": ("total_visits_count", "total_visits"),
    "engaged users": ("engaged_users_count", "user_engaged"),
    "average session duration": ("get_average_session_duration", "session_duration_seconds"),
}
"""Figures by the name that people use: the tool that counts them, and the value to plot."""
_SOURCE_PLOTS = tuple(f"visits_{source.replace(' ', '_')}" for source in SOURCES)
ALLOWED = {
    "value_to_plot": ("total_visits", "session_duration_seconds", "user_engaged", *_SOURCE_PLOTS),
    "plot_type": ("bar", "line", "scatter", "histogram"),
    "status": ("Qualified", "Won", "Lost", "Lead", "Proposal"),
    "product_interest": ("Software", "Hardware", "Services", "Consulting", "Training"),
    "list_name": ("Backlog", "In Progress", "In Review", "Completed"),
    "board": ("Back end", "Front end", "Design"),
}
_KINDS = {
    "calendar": ("events", "Event"),
    "email": ("emails", "Email"),
    "project_management": ("tasks", "Task"),
    "customer_relationship_manager": ("customers", "Customer"),
}
"""Table of a toolkit, and what it calls a row."""
_NOTHING = {
    "calendar.search_events": "No events found.",
    "email.search_emails": "No emails found.",
    "analytics.get_visitor_information_by_id": "Visitor not found.",
}
"""What a search says that finds nothing."""


class Refused(Exception):
    """What a tool says instead of acting."""


class Figures(dict[str, float]):
    """A figure for each day that has visits."""


@cache
def published() -> dict[str, tuple[tuple[str, ...], str]]:
    """Return arguments and description of each tool."""
    lines = re.findall(r"^([\w.]+)\((.*?)\): (.*)$", load("tools"), re.MULTILINE)
    return {name: (tuple(arguments.split(", ")), text) for name, arguments, text in lines}


def tool_schemas(toolkits: Collection[str]) -> list[dict[str, Any]]:
    """Return the tools of these toolkits and the directory as OpenAI tool definitions."""
    schemas = []
    for name, (arguments, text) in published().items():
        if name.partition(".")[0] in {*toolkits, "company_directory"}:
            parameters = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments}}
            function = {"name": name, "description": text, "parameters": parameters}
            schemas.append({"type": "function", "function": function})
    return schemas


def fault(name: str, arguments: Collection[str]) -> str | None:
    """Return what is wrong with a call if the tool or an argument does not exist."""
    if name not in published():
        return f"there is no tool {name}"
    known = published()[name][0]
    if unknown := [argument for argument in arguments if argument not in known]:
        return f"{name} has no argument {unknown[0]}; its arguments are {', '.join(known)}"
    return None


def call(workspace: Workspace, name: str, arguments: Mapping[str, Any]) -> str:
    """Execute a call and return what the policy sees. null counts as left out."""
    try:
        result = result_of(workspace, name, arguments)
    except Refused as refusal:
        return str(refusal)
    if isinstance(result, Figures):
        return _months(result)
    if isinstance(result, dict):
        return _shown([result])
    return _shown(result, _NOTHING.get(name, "[]")) if isinstance(result, list) else result


def result_of(workspace: Workspace, name: str, arguments: Mapping[str, Any]) -> list[Record] | Record | Figures | str:
    """Execute a call and return its result as data.

    Raises:
        Refused: it did not act.
    """
    if wrong := fault(name, arguments):
        raise Refused(f"Invalid call: {wrong}.")
    given = {key: str(value) for key, value in arguments.items() if value is not None}
    toolkit, action = name.split(".")
    tools = _Tools(workspace)
    if method := getattr(tools, action, None):
        return method(**given)
    general = getattr(tools, f"{action.partition('_')[0]}_record")
    return general(*_KINDS[toolkit], *(given.get(key, "") for key in published()[name][0]))


def _require(text: str, *values: str | None) -> None:
    if not all(values):
        raise Refused(text)


def _require_dates(**dates: str) -> None:
    """The original fails on bounds of a search that are no dates."""
    for name, text in dates.items():
        if name.endswith(("_min", "_max")) and text and not is_date(text):
            raise Refused(f"{name} is no date: {text!r}. Format: YYYY-MM-DD")


def _require_allowed(field: str, value: str) -> None:
    if value not in ALLOWED.get(field, [value]):
        label = field.removesuffix("_name").replace("_", " ").capitalize()
        raise Refused(f"{label} not valid. Please choose from: {', '.join(map(repr, ALLOWED[field]))}")


def _shown(records: list[Record], none: str = "[]") -> str:
    """Return records as lines under their column names, which take half the tokens of JSON.

    What several records have in common stands once, in the first line.
    """
    if not records:
        return none
    columns = [name for name in records[0] if len(records) == 1 or len({record[name] for record in records}) > 1]
    common = ", ".join(f"{name}: {value or ''}" for name, value in records[0].items() if name not in columns)
    lines = [columns, *([record[name] or "" for name in columns] for record in records)]
    written = [f"all {common}"] * bool(common) + [" | ".join(line) for line in lines]
    return "\n".join(line.replace("\n", "\\n") for line in written)


def _months(figures: Figures) -> str:
    """Return a line for each month."""
    months = dict.fromkeys(day[:7] for day in figures)
    lines = (
        f"{month}-" + ", ".join(f"{day[8:]}: {figure:.4g}" for day, figure in figures.items() if day[:7] == month)
        for month in months
    )
    return "\n".join(lines) or "{}"


class _Tools:
    """A method per tool, except for those that get, delete or update a record of any kind."""

    def __init__(self, workspace: Workspace) -> None:
        self._all = workspace

    def _record(self, table: str, kind: str, id: str) -> Record:
        for record in self._all.records(table, f"{COLUMNS[table][0]} = ?", [id]):
            return record
        raise Refused(f"{kind} not found.")

    def get_record(self, table: str, kind: str, id: str, field: str) -> Record:
        _require(f"{'Field' if id else f'{kind} ID'} not provided.", id, field)
        record = self._record(table, kind, id)
        if field not in record:
            raise Refused("Field not found.")
        return {field: record[field]}

    def delete_record(self, table: str, kind: str, id: str) -> str:
        _require(f"{kind} ID not provided.", id)
        self._record(table, kind, id)
        self._all.execute(f"DELETE FROM {table} WHERE {COLUMNS[table][0]} = ?", id)
        return f"{kind} deleted successfully."

    def update_record(self, table: str, kind: str, id: str, field: str, value: str) -> str:
        _require(f"{kind} ID, field, or new value not provided.", id, field, value)
        value = value.lower() if field.endswith("_email") else value
        if table != "events":
            self._require_valid(table, {field: value})
        self._record(table, kind, id)
        where = f"WHERE {COLUMNS[table][0]} = ?"
        if field in COLUMNS[table]:
            self._all.execute(f'UPDATE {table} SET "{field}" = ? {where}', value, id)
        elif table == "events":  # the original adds a column of this name
            added = json.dumps({field: value})
            self._all.execute(f"UPDATE events SET other = json_patch(ifnull(other, '{{}}'), ?) {where}", added, id)
        else:
            return f"Field not valid. Please choose from: {', '.join(map(repr, COLUMNS[table][1:]))}"
        return f"{kind} updated successfully."

    def _require_valid(self, table: str, fields: Mapping[str, str]) -> None:
        for field, value in fields.items():
            known = "lower(assigned_to_email) = ?"
            if (table, field) == ("tasks", "assigned_to_email") and not self._all.records("tasks", known, [value]):
                raise Refused("Assignee email not valid. Please choose from the list of team members.")
            _require_allowed(field, value)

    def _append(self, table: str, record: Mapping[str, str | None]) -> str:
        """Append a record under the next id. pandas labels the rows of most tables anew."""
        try:
            id = f"{self._all.largest_id(table) + 1:08}"
        except ValueError:  # an id that a policy made of a word, on which the original fails, too
            raise Refused("The largest ID is not a number.") from None
        self._all.add(table, {COLUMNS[table][0]: id, **record}, 0)
        if table != "events":
            self._all.label_anew(table)
        return id

    def _filtered(self, table: str, filters: dict[str, str]) -> list[Record]:
        """Return the rows whose columns contain the given texts, in any case, and lie within the given dates."""
        _require_dates(**filters)
        given = {name: value for name, value in filters.items() if value}
        _require("No search parameters provided. Please provide at least one parameter.", *given or [""])
        conditions = []
        for name in given:
            column, _, bound = name.rpartition("_")
            compared = {"min": f"{column} >= ?", "max": f"{column} <= ?"}
            conditions.append(compared.get(bound, f"instr(lower({name}), lower(?))"))
        return self._all.records(table, " AND ".join(conditions), list(given.values()))

    def search_events(self, query: str = "", time_min: str = "", time_max: str = "") -> list[Record]:
        _require_dates(time_min=time_min, time_max=time_max)
        where = "(instr(lower(event_name), lower(?1)) OR instr(lower(participant_email), lower(?1)))"
        bounds = (time_min.replace("T", " "), time_max.replace("T", " ") or "9")
        return self._all.records("events", f"{where} AND event_start BETWEEN ?2 AND ?3", [query, *bounds])[:FOUND]

    def create_event(
        self, event_name: str = "", participant_email: str = "", event_start: str = "", duration: str = ""
    ) -> str:
        values = (event_name, participant_email.lower(), event_start, duration)
        for label, value in zip(
            ("Event name", "Participant email", "Event start", "Event duration"), values, strict=True
        ):
            _require(f"{label} not provided.", value)
        return self._append("events", dict(zip(COLUMNS["events"][1:], values, strict=True)))

    def search_emails(self, query: str = "", date_min: str = "", date_max: str = "") -> list[Record]:
        _require_dates(date_min=date_min, date_max=date_max)
        text = "lower(subject || ' ' || body || ' ' || \"sender/recipient\")"
        # One condition for all words: SQLite refuses a thousand of them.
        missing = f"SELECT 1 FROM json_each(?) AS word WHERE ifnull(instr({text}, word.value), 0) = 0"
        where = f"NOT EXISTS ({missing}) AND substr(sent_datetime, 1, 10) BETWEEN ? AND ?"
        values = [json.dumps(list(dict.fromkeys(query.lower().split()))), date_min[:10], date_max[:10] or "9"]
        return self._all.records("emails", where, values, "sent_datetime DESC")[:FOUND]

    def send_email(self, recipient: str = "", subject: str = "", body: str = "") -> str:
        _require("Recipient, subject, or body not provided.", recipient, subject, body)
        if "@" not in recipient or "." not in recipient:
            raise Refused("Invalid recipient email address.")
        id = str(self._all.largest_id("emails") + 1)
        row = (id, "outbox", recipient.lower(), subject, MOMENT, body)
        label = len(self._all.records("emails"))
        # The original writes to the row labelled with the number of rows. After a deletion this is an older email.
        record = dict(zip(COLUMNS["emails"], row, strict=True))
        columns = ", ".join(f'"{column}" = ?' for column in record)
        if not self._all.execute(f"UPDATE emails SET {columns} WHERE label = ?", *row, label):
            self._all.add("emails", record, label)
        return "Email sent successfully."

    def forward_email(self, email_id: str = "", recipient: str = "") -> str:
        _require("Email ID or recipient not provided.", email_id, recipient)
        email = self._record("emails", "Email", email_id)
        return self.send_email(recipient, f"FW: {email['subject']}", email["body"]).replace("sent", "forwarded")

    def reply_email(self, email_id: str = "", body: str = "") -> str:
        _require("Email ID or body not provided.", email_id, body)
        email = self._record("emails", "Email", email_id)
        return self.send_email(email["sender/recipient"], email["subject"], body).replace("sent", "replied")

    def get_visitor_information_by_id(self, visitor_id: str = "") -> list[Record]:
        _require("Visitor ID not provided.", visitor_id)
        return self._all.records("visits", "visitor_id = ?", [visitor_id])

    def create_plot(self, time_min: str = "", time_max: str = "", value_to_plot: str = "", plot_type: str = "") -> str:
        _require("Start date not provided.", time_min)
        _require("End date not provided.", time_max)
        _require_allowed("value_to_plot", value_to_plot)
        _require_allowed("plot_type", plot_type)
        path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
        self._all.add("plots", {"file_path": path}, 0)
        return path

    def _per_day(self, time_min: str, time_max: str, measure: Callable[[list[Record]], float]) -> Figures:
        _require_dates(time_min=time_min, time_max=time_max)
        days: dict[str, list[Record]] = {}
        for visit in self._all.records("visits", "date_of_visit BETWEEN ? AND ?", [time_min, time_max or "9"]):
            days.setdefault(visit["date_of_visit"], []).append(visit)
        return Figures((day, measure(days[day])) for day in sorted(days))

    def total_visits_count(self, time_min: str = "", time_max: str = "") -> Figures:
        return self._per_day(time_min, time_max, len)

    def engaged_users_count(self, time_min: str = "", time_max: str = "") -> Figures:
        return self._per_day(time_min, time_max, lambda day: sum(visit["user_engaged"] == "True" for visit in day))

    def traffic_source_count(self, time_min: str = "", time_max: str = "", traffic_source: str = "") -> Figures:
        wanted = [traffic_source] if traffic_source else SOURCES
        return self._per_day(time_min, time_max, lambda day: sum(visit["traffic_source"] in wanted for visit in day))

    def get_average_session_duration(self, time_min: str = "", time_max: str = "") -> Figures:
        def mean(day: list[Record]) -> float:
            return statistics.fmean(float(visit["session_duration_seconds"]) for visit in day)

        return self._per_day(time_min, time_max, mean)

    def search_tasks(self, **filters: str) -> list[Record]:
        return self._filtered("tasks", filters)

    def search_customers(self, **filters: str) -> list[Record]:
        return self._filtered("customers", filters)[:FOUND]

    def create_task(self, **fields: str) -> str:
        _require("Missing task details.", *(fields.get(column) for column in COLUMNS["tasks"][1:]))
        fields["assigned_to_email"] = fields["assigned_to_email"].lower()
        self._require_valid("tasks", fields)
        return self._append("tasks", fields)

    def add_customer(self, **fields: str) -> str:
        required = ("customer_name", "assigned_to_email", "status")
        _require(f"Please provide all required fields: {', '.join(required)}.", *map(fields.get, required))
        lowered = {name: text.lower() if name.endswith("_email") else text for name, text in fields.items()}
        return self._append("customers", {"notes": "", **lowered})

    def find_email_address(self, name: str = "") -> str:
        _require("Name not provided.", name)
        found = self._all.records("directory", "instr(email_address, lower(?))", [name])
        return ", ".join(entry["email_address"] for entry in found) or "No employee found with that name."
