"""Episodes that show how an honest agent does a task: it looks up what the question does not say, then makes the reference calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from tasks.workbench.episode import DONE, Episode, Limits, estimated_tokens
from tasks.workbench.judge import Call
from tasks.workbench.scenarios import WorkbenchScenario
from tasks.workbench.tables import MOMENT, Record, Tables
from tasks.workbench.tools import ALLOWED, SOURCES

_TODAY = date.fromisoformat(MOMENT[:10])
_MONTHS = ("september", "october", "november", "december")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_METRICS = {
    "total visits": "analytics.total_visits_count",
    "engaged users": "analytics.engaged_users_count",
    "average session duration": "analytics.get_average_session_duration",
}
_CONDITION = re.compile(r"\b(if|was|were|than|most)\b")
_IDS = {"event_id": "events", "email_id": "emails", "task_id": "tasks", "customer_id": "customers"}


def demonstrate(tables: Tables, scenario: WorkbenchScenario, limits: Limits) -> Episode:
    """Return the episode. It ends early, without the right outcome, if no look-up shows what a reference call needs."""
    return _Agent(tables, scenario, limits).play()


class _Agent:
    def __init__(self, tables: Tables, scenario: WorkbenchScenario, limits: Limits) -> None:
        self.episode, self.reference = Episode(tables, scenario, limits), scenario.reference
        self.asked = scenario.question.lower()
        self.people = {
            name: to for name, to in tables.people.items() if re.search(rf"\b{re.escape(name)}\b", self.asked)
        }
        self.toolkits = scenario.toolkits

    def play(self) -> Episode:
        for look in self.evidence():
            self.make(look)
        for call in self.reference:
            if not self.informed(call):
                self.episode.outcome = "gave_up"
            self.make(call)
        self.say(DONE)
        return self.episode

    def say(self, text: str, *requested: tuple[str, str, str]) -> None:
        if self.episode.outcome is None:
            said = {"role": "assistant", "content": text}
            self.episode.context_tokens += estimated_tokens(text)
            self.episode.act(said, said, requested)

    def make(self, call: Call) -> None:
        if call not in self.episode.calls:
            written = json.dumps({"name": call.name, "arguments": call.arguments})
            id = f"call_{len(self.episode.calls)}"
            self.say(f"<tool_call>\n{written}\n</tool_call>", (id, call.name, json.dumps(call.arguments)))

    def knows(self, text: str) -> bool:
        """Return whether the question or an observation says it."""
        return any(text in message["content"] for message in self.episode.messages if message["role"] != "assistant")

    def informed(self, call: Call) -> bool:
        """Look up the id and addresses of a call. Return whether everything is known."""
        for name, value in call.arguments.items():
            if "@" in value and not self.knows(value):
                self.find(value)
            elif name in _IDS and not self.knows(value):
                table = _IDS[name]
                for record in self.episode.workspace.records(table, f"{name} = ?", [value]):
                    for look in self.searches(table, record):
                        if not self.knows(value):
                            self.make(look)
        exact = [value for name, value in call.arguments.items() if name in _IDS or "@" in value]
        return all(map(self.knows, exact))

    def find(self, address: str) -> None:
        for name, found in self.people.items():
            if found == address:
                self.make(Call("company_directory.find_email_address", {"name": name}))

    def named(self, record: Record, *columns: str) -> list[str]:
        """Return the values of these columns that the question names, and first names of addresses."""
        values = [str(record[column]) for column in columns]
        values = [value.partition(".")[0] if "@" in value else value for value in values]
        return [value for value in values if value.lower() in self.asked]

    def searches(self, table: str, record: Record) -> Iterator[Call]:
        """Yield look-ups that may show a record, the simplest first."""
        if table == "events":
            day = record["event_start"][:10]
            windows = [(MOMENT, ""), (f"{day} 00:00:00", f"{day} 23:59:59")]
            if re.search("|".join((*_DAYS, *_MONTHS)), self.asked):
                windows.reverse()
            for text in [*self.named(record, "event_name", "participant_email"), ""]:
                for low, high in windows:
                    yield _look("calendar.search_events", query=text, time_min=low, time_max=high)
        elif table == "emails":
            for text in self.named(record, "subject", "sender/recipient"):
                for low in ("", str(_TODAY - timedelta(days=7))):
                    yield _look("email.search_emails", query=text, date_min=low)
        elif table == "tasks":
            self.find(record["assigned_to_email"])
            for named in [*self.named(record, "list_name"), ""]:
                to = record["assigned_to_email"]
                yield _look("project_management.search_tasks", assigned_to_email=to, list_name=named)
        else:
            tool = "customer_relationship_manager.search_customers"
            for name in self.named(record, "customer_name"):
                yield _look(tool, customer_name=name)
            self.find(record["assigned_to_email"])
            to = record["assigned_to_email"] if self.named(record, "assigned_to_email") else ""
            filters = {c: record[c] for c in ("status", "product_interest") if self.named(record, c)}
            yield _look(tool, assigned_to_email=to, **filters)

    def evidence(self) -> Iterator[Call]:
        """Yield look-ups that say whether a condition of the question holds, and what it refers to."""
        workspace, condition = self.episode.workspace, _CONDITION.search(self.asked)
        if "analytics" in self.toolkits and condition:
            since = next((c.arguments["time_min"] for c in self.reference if "time_min" in c.arguments), self.since())
            for metric, tool in _METRICS.items():
                if metric in self.asked:
                    yield _look(tool, time_min=since)
            for source in SOURCES:
                if source in self.asked or "traffic source" in self.asked:
                    yield _look("analytics.traffic_source_count", time_min=since, traffic_source=source)
        for record in workspace.records("customers"):
            if record["customer_name"].lower() in self.asked and "customer_relationship_manager" in self.toolkits:
                yield _look("customer_relationship_manager.search_customers", customer_name=record["customer_name"])
        receivers = {call.arguments.get("new_value") for call in self.reference}
        for name, address in self.people.items():
            if (
                "project_management" in self.toolkits
                and re.search(r"\btasks\b", self.asked)
                and address not in receivers
            ):
                self.find(address)
                named = next((text for text in ALLOWED["list_name"] if text.lower() in self.asked), "")
                yield _look("project_management.search_tasks", assigned_to_email=address, list_name=named)
            if "email" in self.toolkits and "sent me" in self.asked:
                yield _look("email.search_emails", query=name, date_min=self.since())
            if "calendar" in self.toolkits and re.search(r"\b(next|last|past) \d+ days", self.asked):
                ahead = "next" in self.asked
                low, high = (MOMENT, self.since()) if ahead else (f"{self.since()} 00:00:00", MOMENT)
                yield _look("calendar.search_events", query=name, time_min=low, time_max=high)
        if "free" in self.asked and any(call.name == "calendar.create_event" for call in self.reference):
            yield _look("calendar.search_events", time_min="2023-12-01 00:00:00", time_max="2023-12-01 23:59:59")
        if first := re.search(rf"first event on ({'|'.join(_MONTHS)}) (\d+)", self.asked):
            day = f"2023-{_MONTHS.index(first[1]) + 9:02}-{int(first[2]):02}"
            yield _look("calendar.search_events", time_min=f"{day} 00:00:00", time_max=f"{day} 23:59:59")

    def since(self) -> str:
        """Return the day that the question counts from, or to if it looks ahead; a week ago if it names none."""
        if written := re.search(r"\d{4}-\d\d-\d\d", self.asked):
            return written[0]
        if named := re.search(rf"\b({'|'.join(_MONTHS)}) (\d+)", self.asked):
            return f"2023-{_MONTHS.index(named[1]) + 9:02}-{int(named[2]):02}"
        if span := re.search(r"\b(next|last|past) (\d+) (day|week)s", self.asked):
            days = int(span[2]) * (7 if span[3] == "week" else 1)
            return str(_TODAY + timedelta(days=days if span[1] == "next" else -days))
        for number, weekday in enumerate(_DAYS):
            if weekday in self.asked:
                return str(_TODAY - timedelta(days=(_TODAY.weekday() - number) % 7 or 7))
        return str(_TODAY - timedelta(days=7))


def _look(tool: str, **arguments: Any) -> Call:
    return Call(tool, {name: value for name, value in arguments.items() if value})
