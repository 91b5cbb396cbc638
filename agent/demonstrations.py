"""The oracle: an episode played with knowledge of the gold mails, through the same tools as the agent.

Its episodes are the warm start's demonstrations, and its score in the evaluation is the environment's own test: what the oracle cannot
reach through the tools, no agent can.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import art

from agent.graph import ToolCallRecord, observation_of
from agent.rollout import AgentRun, opening_messages
from agent.settings import AgentSettings
from environment.email_db import Mailbox
from environment.models import EmailView, FinalAnswer, Scenario
from environment.search_text import content_words
from environment.tools import MailTools, tool_schemas

MAX_KEYWORDS = 6

_WORD = re.compile(r"[^\W_]+(?:[-'.&][^\W_]+)*")
_NAME = re.compile(r"\b[A-Z][\w&'-]*(?: (?:& )?[A-Z][\w&'-]*)*")


def _text(mail: EmailView) -> str:
    return f"{mail.subject}\n{mail.body}"


def _as_written(words: list[str], texts: list[str]) -> str:
    """The words as one query, each spelled as in the texts: copying a word is easier to learn than lower-casing it."""
    spelled = {match.lower(): match for text in reversed(texts) for match in _WORD.findall(text)}
    return " ".join(spelled.get(word, word) for word in words[:MAX_KEYWORDS])


def _queries(question: str, target: EmailView, known: list[EmailView]) -> list[str]:
    """Queries that lead to `target`, best first: what an agent that has read `known` could have searched for.

    After a first mail, the bridge is the longest name that it shares with the target and that the question does not contain.
    """
    asked = content_words(question)
    in_target = set(content_words(_text(target)))
    shared = [word for word in asked if word in in_target]
    plans: list[list[str]] = []
    for mail in reversed(known):
        names = sorted(set(_NAME.findall(_text(mail))), key=lambda name: (-len(name.split()), -len(name), name))
        for name in names:
            words = content_words(name)
            if words and all(word in in_target for word in words) and not all(word in asked for word in words):
                plans.append([*words, *(word for word in shared if word not in words)])
                break
    if not known:
        plans.append(shared)
    plans += [asked, [*shared, *content_words(target.subject)], content_words(target.subject)]
    return [_as_written(plan, [question, *map(_text, known), _text(target)]) for plan in plans if plan]


def play_oracle(scenario: Scenario, mailbox: Mailbox, gold_ids: list[int], settings: AgentSettings) -> AgentRun:
    """Search for each gold mail in order, read it, answer with the reference. `gold_ids` are the short ids of the gold mails.

    A gold mail that no plan finds is left out; without any, the episode ends without an answer.
    """
    started = time.monotonic()
    tools = MailTools(mailbox, settings)
    record: list[Any] = list(opening_messages(scenario.question, mailbox, settings))
    calls: list[ToolCallRecord] = []
    shown: set[int] = set()
    known: list[EmailView] = []
    answer: FinalAnswer | None = None

    def act(name: str, arguments: dict[str, Any]) -> None:
        nonlocal answer
        result = tools.call(name, arguments)
        text = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        record.append({"role": "assistant", "content": text})
        calls.append(
            ToolCallRecord(name=name, arguments=arguments, observation=result.observation, email_ids=result.email_ids)
        )
        if result.final is not None:
            answer = result.final
            return
        record.append({"role": "tool", "tool_call_id": f"call_{len(calls)}", "content": observation_of(calls[-1], scenario.question)})
        if name == "search_inbox_tool":
            shown.update(result.email_ids)

    for gold_id in gold_ids:
        target = mailbox.read(gold_id)
        if target is None:
            continue
        if gold_id not in shown:
            for query in _queries(scenario.question, target, known):
                found = mailbox.search([query], max_results=settings.max_results)
                if gold_id in {hit.id for hit in found}:
                    act("search_inbox_tool", {"keywords": [query]})
                    break
            else:
                continue
        act("read_email_tool", {"email_id": gold_id})
        known.append(target)
    if known:
        act("return_final_answer_tool", {"answer": scenario.answer, "source_ids": [mail.id for mail in known]})
    turns = sum(turn["role"] == "assistant" for turn in record)
    return AgentRun(
        answer=answer,
        outcome="answered" if answer else "max_turns",
        turns=turns,
        seconds=time.monotonic() - started,
        calls=calls,
        record=record,
    )


def demonstration(run: AgentRun, scenario: Scenario, settings: AgentSettings) -> art.Trajectory:
    """An oracle episode as a trajectory for supervised fine-tuning."""
    return art.Trajectory(
        messages_and_choices=run.record,
        tools=tool_schemas(settings.optional_arguments),
        reward=1.0,
        metadata={"scenario_id": scenario.id, "kind": scenario.kind},
    )
