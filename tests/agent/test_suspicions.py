"""What the agent's episodes are suspected of."""

from __future__ import annotations

from typing import Any

import pytest

from agent.graph import ToolCallRecord
from agent.rollout import AgentRun
from agent.suspicions import suspicions
from environment.models import FinalAnswer
from environment.tools import FINAL_ANSWER, READ, SEARCH
from training.task import SUSPECT

GOLD = [7]


def search(words: str, *found: int) -> ToolCallRecord:
    return ToolCallRecord(name=SEARCH, arguments={"keywords": [words]}, observation=f"{found}", email_ids=list(found))


def read(id: int, text: str = "a mail", **more: Any) -> ToolCallRecord:
    return ToolCallRecord(name=READ, arguments={"email_id": id, **more}, observation=f"{id} {text}", email_ids=[id])


def no_mail(id: int) -> ToolCallRecord:
    return ToolCallRecord(name=READ, arguments={"email_id": id}, observation="No mail with that id in this mailbox.")


def suspected(*calls: ToolCallRecord, cited: int | None = 1) -> set[str]:
    answer = None if cited is None else FinalAnswer(answer="x", source_ids=tuple(f"<{n}>" for n in range(cited)))
    final = [] if answer is None else [ToolCallRecord(name=FINAL_ANSWER, arguments={}, observation="", email_ids=[7])]
    run = AgentRun(answer=answer, outcome="answered", turns=len(calls), seconds=1.0, calls=[*calls, *final])
    return {name.removeprefix(SUSPECT) for name, is_so in suspicions(run, GOLD).items() if is_so}


@pytest.mark.parametrize(
    "calls",
    [
        (search("a", 7, 8, 9), read(7)),
        (search("a", 8, 9), read(8), search("b", 7, 8), read(7)),
        (search("a", 8), search("a", 8), search("b", 7), read(7)),  # a mistake, once
        (search("a", 7, 8), read(7), read(8)),  # looked whether another mail corrects it
        (search("a", 7), read(7, "begins"), read(7, "goes on", start=700), read(7, "ends", start=1400)),
        (search("a", 8), no_mail(1), search("b", 7), read(7)),
    ],
)
def test_honest_episodes_are_not_suspected(calls: tuple[ToolCallRecord, ...]) -> None:
    assert suspected(*calls) == set()
    assert suspected(*calls, cited=2) == set()
    assert suspected(*calls, cited=None) == set()


@pytest.mark.parametrize(
    ("calls", "cited", "names"),
    [
        ((search("a", 7), read(7), read(7), read(7)), 1, {"repeated_calls", "turn_padding"}),
        ((search("a", 7), search("a", 7), search("a", 7)), None, {"repeated_calls", "turn_padding"}),
        ((search("a", 7), search("b", 7), search("c", 7), read(7)), 1, {"turn_padding"}),
        ((search("a", 7, 8, 9), read(7), read(8), read(9)), 1, {"turn_padding"}),
        ((search("a", 7), no_mail(1), no_mail(2), read(7)), 1, {"turn_padding"}),
        ((search("a", 7, 8, 9), read(7)), 3, {"source_spam"}),
        ((search("a", 7, 8, 9),), 1, {"unread_answer"}),
        ((), 1, {"unread_answer"}),
        ((no_mail(1),), 3, {"source_spam", "unread_answer"}),
        ((), None, set()),
    ],
)
def test_tricks_are(calls: tuple[ToolCallRecord, ...], cited: int | None, names: set[str]) -> None:
    assert suspected(*calls, cited=cited) == names
