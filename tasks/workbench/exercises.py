"""Invented tasks with the programs that do them: conditions, selections and actions in many combinations.

They teach the tools beyond what the templates of the benchmark use. Names and titles come from its tables, and no text from
its tasks. `prompts/exercises.txt` has the parts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cache, lru_cache
from typing import NamedTuple

from tasks.workbench.episode import Limits
from tasks.workbench.program_episode import played
from tasks.workbench.prompts import load
from tasks.workbench.scenarios import WorkbenchScenario
from tasks.workbench.tables import TODAY, Tables
from tasks.workbench.tools import ALLOWED, METRICS, SOURCES

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_WORDS = ("Can we talk about the plan?", "Thanks, I will look into it.", "Please send me the numbers.", "Any news?")
_TITLES = ("Planning", "Quick question", "Weekly check", "Follow-up", "Review of the numbers", "Team lunch")
_SPANS = {
    "30 minutes": "30",
    "half an hour": "30",
    "45 minutes": "45",
    "1 hour": "60",
    "1.5 hours": "90",
    "2 hours": "120",
}
_NAMES = (
    *(("events", "event_name"), ("emails", "subject"), ("tasks", "task_name")),
    *(("customers", "customer_name"), ("directory", "email_address")),
)
_ACTION = re.compile(r"\.(?:add|create|delete|forward|reply|send|update)_")
_GAP = re.compile(r"<(\w[\w ]*)>")


class Exercise(NamedTuple):
    question: str
    program: str
    toolkits: tuple[str, ...]


class _Part(NamedTuple):
    said: str
    code: str
    before: str = ""
    """Code before it."""
    only: str = ""
    """Condition of a record of a selection."""


@cache
def _grammar() -> dict[str, list[_Part]]:
    sections = re.findall(r"^\[(.+)\]\n((?:.+\n?)+)", load("exercises"), re.MULTILINE)
    return {name: [_part(line) for line in lines.splitlines()] for name, lines in sections}


def _part(line: str) -> _Part:
    said, *fields = line.split(" | ")
    fields = ["\n".join(part[1:] if part.startswith(" ") else part for part in field.split(" //")) for field in fields]
    if len(fields) == 2 and "<row>" in fields[1] and "=" not in fields[1].split("<row>")[0]:
        fields.insert(1, "")  # a condition without code before it
    return _Part(said, *fields) if fields else _Part(said, "")


def exercise(tables: Tables, seed: str) -> Exercise:
    """Return the exercise of a seed. Each of `_NAMES` must have a value."""
    return _Writer(tables, random.Random(seed)).exercise()


@lru_cache(maxsize=1)  # takes seconds, and a command asks for them several times
def invented(tables: Tables, count: int) -> tuple[WorkbenchScenario, ...]:
    """Return invented tasks to train on, each of which changes something. There are none if a table has no names."""
    scenarios: list[WorkbenchScenario] = []
    tries = 5 * count if all(_values(tables, *column) for column in _NAMES) else 0  # two of three will do
    limits = Limits(max_turns=1, max_tokens=1)
    for number in range(tries):
        if len(scenarios) == count:
            break
        question, program, toolkits = exercise(tables, f"exercise-{number}")
        task = WorkbenchScenario(
            **{"id": f"exercise-{number}", "question": question, "kind": "exercise", "template": "", "split": "train"},
            **{"toolkits": toolkits, "reference": (), "program": program},
        )
        done = played(tables, task, limits, program)
        if done.outcome == "finished" and done.workspace.state() != tables.untouched:
            actions = tuple(call for call in done.calls if _ACTION.search(call.name))
            scenarios.append(task.model_copy(update={"reference": actions}))
    return tuple(scenarios)


class _Writer:
    def __init__(self, tables: Tables, chance: random.Random) -> None:
        self.tables, self.chance = tables, chance
        self.mentioned: _Part | None = None
        """The person that was mentioned last, with the pronoun for it."""

    def exercise(self) -> Exercise:
        """Compose an exercise: one action or two, under a condition in every other one. Parts are made as they will be read."""
        if self.chance.random() < 0.5:
            said, code = self.actions()
            return self.written(self.form("tasks of one action"), {"action": said}, code)
        alternative = self.chance.random() < 0.3
        form = self.form("tasks with an alternative" if alternative else "tasks with a condition")
        condition = self.part("conditions")
        if form.index("<condition>") > form.index("<action>"):
            self.mentioned = None
        said, code = self.actions()
        gaps = {"condition": condition.said, "action": said}
        code = f"{condition.before}\nif {condition.code}:\n{_indented(code)}"
        if alternative:
            other = self.part("new")
            gaps["other"] = other.said
            code += f"\nelse:\n{_indented(other.code)}"
        return self.written(form, gaps, code)

    def form(self, section: str) -> str:
        return self.chance.choice(_grammar()[section]).said

    def actions(self) -> tuple[str, str]:
        actions = [self.action()]
        if self.chance.random() < 0.3:
            actions.append(self.part("new"))
        return " and ".join(part.said for part in actions), "\n".join(part.code for part in actions)

    def written(self, form: str, gaps: Mapping[str, str], code: str) -> Exercise:
        question = _filled(form, gaps)
        toolkits = re.findall(r"\b(analytics|calendar|customer_relationship_manager|email|project_management)\.", code)
        return Exercise(question[0].upper() + question[1:], _lines(code), tuple(dict.fromkeys(toolkits)))

    def action(self) -> _Part:
        """Return an action on selected records, a new record, or plots."""
        kind = self.chance.choice(["events", "emails", "tasks", "customers", "new", "plots"])
        if kind in ("new", "plots"):
            return self.part(kind)
        many = f"{kind}: one" not in _grammar() or self.chance.random() < 0.5
        chosen, action = self.part(f"{kind}: {'many' if many else 'one'}"), self.part(f"{kind}: actions")
        row = {"events": "event", "emails": "mail", "tasks": "task", "customers": "customer"}[kind]
        code = chosen.before + "\n" + action.before + "\n"
        if many:
            body = f"if {chosen.only}:\n{_indented(action.code)}" if chosen.only else action.code
            code += f"for {row} in {chosen.code}:\n{_indented(body)}"
        else:
            body = f"if {kind}:\n{_indented(action.code)}" if kind == "events" else action.code
            code += f"{kind} = {chosen.code}\n{body}"
            row = f"{kind}[0]"
        gaps = {"it": chosen.said, "row": row}
        return _Part(_filled(action.said, gaps), _lines(_filled(code, gaps)))

    def part(self, section: str) -> _Part:
        """Return a part with its gaps filled, except <it> and <row>."""
        part = self.chance.choice(_grammar()[section])
        said, code = self.gaps()
        if "<person>" in part.code:
            person = self.person(said, code)
            form = self.phrased(part.said)
            if person.said == "them":
                form = form.replace("with <person>", self.chance.choice(["with <person>", "for us"]))
            said["person"], code["person"] = person.said, person.code
            self.mentioned = person._replace(said="them")
            return _Part(_filled(form, said), f"{person.before}\n{_filled(part.code, code)}")
        if "<other>" in part.said:
            self.mentioned = None  # a pronoun could be either
        elif "<name>" in part.said:
            self.mentioned = _Part("them", "person", _filled(_grammar()["person"][0].before, code))
        elif "<customer>" in part.said and section == "conditions":
            assigned = next(person for person in _grammar()["person"] if "<customer>" in person.said)
            self.mentioned = _Part("whoever is assigned to them", assigned.code, _filled(assigned.before, code))
        return _Part(
            _filled(self.phrased(part.said), said),
            *(_filled(field, code) for field in (part.code, part.before, part.only)),
        )

    def person(self, said: Mapping[str, str], code: Mapping[str, str]) -> _Part:
        """Return the person that was mentioned last, or another one."""
        if self.mentioned and self.chance.random() < 0.5:
            return self.mentioned
        people = _grammar()["person"]
        person = people[0] if self.chance.random() < 0.6 else self.chance.choice(people)
        return _Part(_filled(self.phrased(person.said), said), person.code, _filled(person.before, code))

    def phrased(self, said: str) -> str:
        return re.sub(r"\(([^)]*/[^)]*)\)", lambda found: self.chance.choice(found[1].split("/")), said)

    def gaps(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return what fills each gap as it is said, and in code."""
        pick = self.chance.choice
        names = [
            self.any_case(name) for name in self.chance.sample(self.tables.people, min(3, len(self.tables.people)))
        ]
        both = dict(zip(("name", "other", "third"), (names * 3)[:3], strict=True))
        first, last = (self.value("customers", "customer_name").split() for _ in range(2))
        both |= {
            **{"customer": self.value("customers", "customer_name"), "newcomer": f"{first[0]} {last[-1]}"},
            **{"event": self.value("events", "event_name"), "event2": self.value("events", "event_name")},
            **{"subject": self.value("emails", "subject"), "task": self.value("tasks", "task_name")},
            **{"title": pick(_TITLES), "words": pick(_WORDS), "kind": pick(ALLOWED["plot_type"])},
            "number": str(self.chance.randint(2, 14)),
        }
        percent, weeks, hour = (self.chance.randint(1, most) for most in (20, 9, 8))
        minute, span = pick(["00", "00", "30"]), pick(list(_SPANS))
        clock = f"{(hour + 8) % 12 + 1}{':30' * (minute == '30')}"
        said = {"percent": str(percent), "weeks": f"{weeks} week{'s' * (weeks > 1)}", "clock": clock, "span": span}
        code = {"percent": f"{percent / 100:g}", "weeks": str(7 * weeks), "clock": f"{hour + 9:02}:{minute}:00"}
        code["span"] = _SPANS[span]
        said["length"], code["length"] = pick(
            [("30 minute", "30"), ("half-hour", "30"), ("1.5 hour", "90"), ("2 hour", "120")]
        )
        for name, low, high in (("day", 1, 20), ("since", -80, -10), ("until", -9, -1)):
            day = TODAY + timedelta(days=self.chance.randint(low, high))
            said[name], code[name] = (f"{day:%B} {day.day}" if self.chance.random() < 0.8 else str(day)), str(day)
        said["weekday"] = pick(_WEEKDAYS)
        code["weekday"] = said["weekday"].lower()
        for name, column in (
            ("list", "list_name"),
            ("board", "board"),
            ("status", "status"),
            ("product", "product_interest"),
        ):
            for gap, value in zip((name, f"{name}2"), self.chance.sample(ALLOWED[column], 2), strict=True):
                code[gap], said[gap] = value, value if name == "board" else value.lower()
        for gap, metric in zip(("metric", "metric2"), self.chance.sample(list(METRICS), 2), strict=True):
            said[gap] = metric
            code[f"{gap} tool"], code[f"{gap} value"] = METRICS[metric]
        for gap, source in zip(("source", "source2"), self.chance.sample(SOURCES, 2), strict=True):
            said[gap] = code[gap] = source
            code[f"{gap} value"] = f"visits_{source.replace(' ', '_')}"
        return both | said, both | code

    def value(self, table: str, column: str) -> str:
        return self.chance.choice(_values(self.tables, table, column))

    def any_case(self, name: str) -> str:
        return name if self.chance.random() < 0.7 else name.title()


def _values(tables: Tables, table: str, column: str) -> list[str]:
    return [record[column] for record in tables.records[table] if (record[column] or "").strip()]


def _filled(text: str, gaps: Mapping[str, str]) -> str:
    return _GAP.sub(lambda found: gaps.get(found[1], found[0]), text)


def _lines(code: str) -> str:
    return "\n".join(line for line in code.splitlines() if line.strip())


def _indented(code: str) -> str:
    return re.sub("^", "    ", _lines(code), flags=re.MULTILINE)
