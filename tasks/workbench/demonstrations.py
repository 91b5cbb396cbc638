"""Programs that do tasks of known templates: sketches with gaps, which the question fills."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations

from tasks.workbench.prompts import load
from tasks.workbench.scenarios import WorkbenchScenario
from tasks.workbench.tables import Tables
from tasks.workbench.tools import ALLOWED, METRICS, SOURCES

_MONTHS = ("september", "october", "november", "december")
_QUOTED = re.compile(r"(?<!\w)'((?:[^']|(?<=\w)'(?=[a-z]))+)'(?!\w)")
_DAYS = r"monday|tuesday|wednesday|thursday|friday|saturday|sunday"


@cache
def sketches() -> list[tuple[re.Pattern[str], str]]:
    """Return pattern of the template and sketch, with the parts that several sketches share."""
    blocks = re.findall(r"^([#=]) (.+)\n((?:.+\n?)+)", load("sketches"), re.MULTILINE)
    parts = {f"<{name}>": part.rstrip() for kind, name, part in blocks if kind == "="}
    found = []
    for kind, pattern, sketch in blocks:
        lines = []
        for line in sketch.splitlines():
            part = parts.get(line.strip(), line.strip())
            lines += [line.replace(line.strip(), shared, 1) for shared in part.splitlines()]
        if kind == "#":
            found.append((re.compile(pattern), "\n".join(lines)))
    return found


def programs(tables: Tables, scenario: WorkbenchScenario) -> Iterator[str]:
    """Yield programs that may do the task, the likeliest first; none if the template has no sketch or a gap stays open."""
    for pattern, sketch in sketches():
        if pattern.search(scenario.template):
            for gaps in _gaps(tables, scenario.question):
                program = re.sub(r"<([a-z][a-z0-9 ]*)>", lambda found: gaps.get(found[1], found[0]), sketch)  # noqa: B023
                if not re.search(r"<[a-z][a-z0-9 ]*>", program):
                    yield program
            return


def _gaps(tables: Tables, question: str) -> Iterator[dict[str, str]]:
    """Yield what a question says, for both orders of two persons."""
    asked, gaps = question.lower(), {}
    people = [word for word in re.findall(r"\w+", _QUOTED.sub("", question)) if word.lower() in tables.people]
    measured = sorted((asked.index(name), name) for name in (*METRICS, *SOURCES) if name in asked)
    if since := _date(asked):
        gaps["since"] = gaps["day"] = since[0]
        gaps["until"] = since[-1]
    for suffix, (_, name) in zip(("", "2"), measured, strict=False):
        tool, value = METRICS.get(name, ("traffic_source_count", f"visits_{name.replace(' ', '_')}"))
        source = f', traffic_source="{name}"' if name in SOURCES else ""
        gaps |= {f"metric{suffix}": name, f"plot{suffix}": value}
        gaps[f"figures{suffix} day"] = f"analytics.{tool}(time_min=day{source})"
        if since:
            gaps[f"figures{suffix} since"] = f'analytics.{tool}(time_min="{since[0]}"{source})'
    if kind := re.search("|".join(ALLOWED["plot_type"]), asked):
        gaps["kind"] = kind[0]
    if span := re.search(r"\b(\d{1,3}) (day|week)s", asked):
        gaps["days"] = str(int(span[1]) * (7 if span[2] == "week" else 1))
    if than := re.search(r"(more|less) than (\d{1,9})", asked):
        gaps |= {"sign": ">" if than[1] == "more" else "<", "number": than[2]}
    if percent := re.search(r"(\d{1,3})% (higher|lower)", asked):
        number = f"{int(percent[1]) / 100:g}"
        gaps["growth sign"] = ">" if percent[2] == "higher" else "<"
        gaps["percent"] = number if percent[2] == "higher" else f"-{number}"
    if "popular" in asked:
        gaps["most"] = "max" if "most popular" in asked else "min"
    if weekday := re.search(_DAYS, asked):
        gaps["weekday"] = weekday[0]
    if clock := re.search(r"(at|before|after) (\d{1,2})(?::(\d\d))?\b(?! ?hour)", asked):
        gaps["time"] = f"{int(clock[2]) + 12 * (int(clock[2]) < 9):02}:{clock[3] or '00'}:00"
        if clock[1] != "at":
            gaps["sign"] = "<" if clock[1] == "before" else ">"
    if length := re.search(r"(\d{1,3}(?:\.\d)?) (hour|minute)", asked):
        gaps["minutes"] = f"{float(length[1]) * (60 if length[2] == 'hour' else 1):g}"
    if event := re.search(r"event called (.+?) on|(?:future|any more) (.+?) meetings", question):
        gaps["event"] = event[1] or event[2]
    if task := re.search(r"task .*?called (.+?)(?: and assign| to the)", question):
        gaps["task"] = task[1]
    for name, column in (("status", "status"), ("product", "product_interest"), ("board", "board")):
        for value in ALLOWED[column]:
            if value.lower() in asked:
                gaps[name] = value
    if stage := re.search(r"in the (\w+) stage", asked):
        gaps["status"] = stage[1].title()
    if customer := re.search(
        r"\b(?!Can|We|Add|Give|Delete|Update|Reassign|Check|If)([A-Z][a-z]+ [A-Z][a-z]+)\b", question
    ):
        gaps["customer"] = customer[1]
    texts = _QUOTED.findall(question)
    gaps |= dict(zip(("text", "text2"), texts, strict=False))
    if texts:
        gaps["subject"] = texts[0]
    orders = list(permutations(dict.fromkeys(people), min(2, len(set(people))))) or [()]
    for order in sorted(orders, key=lambda order: not _begins(order, question)):
        yield gaps | dict(zip(("name", "other"), order, strict=False))


def _begins(order: Sequence[str], question: str) -> bool:
    """Return whether the first of these persons seems to be the one that something is taken from."""
    return bool(order) and re.search(rf"\b(from|that) {order[0]}\b|\b{order[0]}'s\b", question) is not None


def _date(asked: str) -> list[str]:
    """Return the days of the year that a question names."""
    found = re.findall(rf"(\d{{4}}-\d\d-\d\d)|({'|'.join(_MONTHS)}) (\d{{1,2}})", asked)
    return [iso or f"2023-{_MONTHS.index(month) + 9:02}-{int(day):02}" for iso, month, day in found]
