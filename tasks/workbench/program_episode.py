"""An episode of one reply: a program that calls the tools, in tables of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from openai.types.chat.chat_completion import Choice

from tasks.workbench.episode import Episode, Limits
from tasks.workbench.judge import Call
from tasks.workbench.programs import ProgramError, run
from tasks.workbench.prompts import load
from tasks.workbench.scenarios import WorkbenchScenario
from tasks.workbench.tables import TODAY, Tables
from tasks.workbench.tools import Figures, Refused, published, result_of, tool_schemas

_END = re.compile(r"</?\|?\w+\|?>\Z")
"""The token at which a model stops."""
_NEAR = {"yesterday": -1, "today": 0, "tomorrow": 1}


class ProgramEpisode(Episode):
    """The episode of a policy, which writes one program and sees nothing of what its calls return."""

    def __init__(self, tables: Tables, scenario: WorkbenchScenario, limits: Limits) -> None:
        super().__init__(tables, scenario, limits)
        self._tables = tables

    def offered(self) -> list[dict[str, Any]]:
        return []

    def instructions(self) -> str:
        names = [schema["function"]["name"] for schema in tool_schemas(self.scenario.toolkits)]
        lines = (f"{name}({', '.join(published()[name][0])}): {published()[name][1]}" for name in names)
        return "\n".join([load("program"), *lines])

    def text_of(self, choice: Choice) -> str:
        """Return the sampled text itself, because ART's tokenizer replaces it by the sampled ids."""
        tokens = (choice.logprobs.content if choice.logprobs else None) or []
        if not tokens:
            return super().text_of(choice)
        text = b"".join(bytes(token.bytes or []) for token in tokens).decode("utf-8", "replace")
        return text if choice.finish_reason == "length" else _END.sub("", text)

    def act(self, said: dict[str, Any], record: Any, requested: Sequence[tuple[str, str, str]]) -> None:
        """Execute the program of a reply. One that fails ends as `malformed_call`, and what it did before is undone."""
        self.turns += 1
        self.messages.append(said)
        self.record.append(record)
        if self.outcome == "truncated":
            return
        program = re.sub(r"^```\w*\n|\n?```\s*$", "", said["content"].strip())
        tools: dict[str, Callable[..., Any]] = {name: partial(self.make, name) for name in published()}
        try:
            run(program, {**tools, "days": _days, "coming": _coming, "past": _past, "later": _later})
            self.outcome = "finished"
        except ProgramError as error:
            self.reason = " ".join(str(error).split())
            self.undo("malformed_call")

    def undo(self, outcome: str) -> None:
        """End with tables as they were."""
        self.outcome = outcome
        self.workspace = self._tables.workspace()

    def make(self, name: str, /, *given: Any, **named: Any) -> Any:
        """Make a call. Raises ProgramError if the tool does not act."""
        known = published()[name][0]
        if len(given) > len(known) or named.keys() & set(known[: len(given)]):
            raise ProgramError(f"{name}: too many arguments")
        arguments = {**dict(zip(known, given, strict=False)), **named}
        self.calls.append(Call(name, arguments))
        try:
            result = result_of(self.workspace, name, arguments)
        except Refused as refusal:
            raise ProgramError(f"{name}: {refusal}") from None
        if isinstance(result, Figures):
            return dict(result)
        if isinstance(result, list):
            return [{column: value or "" for column, value in record.items()} for record in result]
        return result


def played(tables: Tables, scenario: WorkbenchScenario, limits: Limits, program: str) -> ProgramEpisode:
    """Return the episode of a policy that writes this program."""
    episode = ProgramEpisode(tables, scenario, limits)
    said = {"role": "assistant", "content": program}
    episode.act(said, said, [])
    return episode


def _days(n: int) -> str:
    """Return the date that many days from today."""
    return str(TODAY + timedelta(days=n))


def _coming(weekday: Any) -> str:
    return _nearest(str(weekday), 1)


def _past(weekday: Any) -> str:
    return _nearest(str(weekday), -1)


def _nearest(day: str, direction: int) -> str:
    """Return the date of the nearest "Friday" or "December 13" after (`direction` 1) or before (-1) today, or of "tomorrow"."""
    if day.lower() in _NEAR:
        return _days(_NEAR[day.lower()])
    for distance in range(1, 367):
        near = TODAY + timedelta(days=direction * distance)
        if day.lower() in (f"{near:%A}".lower(), f"{near:%B} {near.day}".lower()):
            return str(near)
    raise ProgramError(f"{day[:80]} is no day of a week or month")


def _later(time: str, minutes: Any) -> str:
    """Return a time that many minutes later."""
    return str(datetime.fromisoformat(time) + timedelta(minutes=float(minutes)))
