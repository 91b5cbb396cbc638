"""The oracle plays an episode through the agent's tools, but knows the gold mails.

Its episodes are the demonstrations of the warm start. Its score in the evaluation tests the environment: what the
oracle cannot reach through the tools, no agent can.
"""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any, cast

import art

from agent.graph import ToolCallRecord, observation_of
from agent.judges.facts import content_stems
from agent.rollout import AgentRun, opening_messages
from agent.settings import AgentSettings, DemonstrationSettings
from environment.email_db import Mailbox
from environment.models import EmailView, FinalAnswer, Scenario, SearchResult
from environment.tools import FINAL_ANSWER, PASSAGE_HITS, READ, SEARCH, MailTools, tool_schemas
from environment.words import content_words

MAX_KEYWORDS = 8
MAX_ANSWER_WORDS = 20
"""Maximum length of a demonstrated answer. Longer ones teach to copy, and not where to stop."""

_DEFAULT = DemonstrationSettings()
_WORD = re.compile(r"[^\W_]+(?:[-'.&][^\W_]+)*")
_NAME = re.compile(r"\b[A-Z][\w&'-]*(?: (?:& )?[A-Z][\w&'-]*)*")


class _Moved:
    """A mailbox whose searches show the mail `target`, if they find it, at `place` (0 is the first hit)."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.target = self.place = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mailbox, name)

    def search(self, *arguments: Any, **options: Any) -> list[SearchResult]:
        hits = self._mailbox.search(*arguments, **options)
        moved = [hit for hit in hits if hit.id == self.target]
        rest = [hit for hit in hits if hit.id != self.target]
        return [*rest[: self.place], *moved, *rest[self.place :]]


def _text(mail: EmailView) -> str:
    return f"{mail.subject}\n{mail.body}"


def _as_written(words: list[str], texts: list[str]) -> str:
    """Return the words as one query, spelled as in the texts, because copying is easier to learn than lower-casing."""
    spelled = {match.lower(): match for text in reversed(texts) for match in _WORD.findall(text)}
    return " ".join(spelled.get(word, word) for word in words[:MAX_KEYWORDS])


def named_words(question: str) -> list[str]:
    """Return the words of the names in `question`: capitalised ones inside the sentence, and the content words right after them."""
    found: list[str] = []
    inside = False
    for number, token in enumerate(re.findall(rf"{_WORD.pattern}|[^\w\s]", question)):
        words = content_words(token)
        if number and words and token[0].isupper():
            inside = True
        elif not words:
            inside = False
        if inside:
            found += words
    return list(dict.fromkeys(found))


def first_query(scenario: Scenario, name_queries: float) -> str:
    """Return the first search of a demonstration.

    A share of `name_queries` of those with names search for the names alone, the others for the question as it stands, as
    people do. The search ignores stop words. Which of the two finds more depends on the mail: names in the synthetic
    company, the question in real mail. Demonstrations that show both, drawn by the scenario's id, leave it to GRPO to find
    out.
    """
    named = named_words(scenario.question)
    by_name = random.Random(f"query-{scenario.id}").random() < name_queries
    return _as_written(named, [scenario.question]) if named and by_name else scenario.question


def _bridge(question: str, target: EmailView, read: list[EmailView]) -> list[str]:
    """Return the words of the longest name that `target` shares with a mail read so far and not with the question."""
    asked, in_target = content_words(question), set(content_words(_text(target)))
    for mail in reversed(read):
        names = set(_NAME.findall(_text(mail)))
        for name in sorted(names, key=lambda name: (-len(name.split()), -len(name), name)):
            words = content_words(name)
            if words and all(word in in_target for word in words) and not all(word in asked for word in words):
                return words
    return []


def _queries(
    scenario: Scenario, target: EmailView, read: list[EmailView], hindsight: bool, name_queries: float
) -> list[str]:
    """Return queries that may lead to `target`, best first, for an agent that has read the mails `read`.

    The first query uses only what such an agent has seen: words of the question or, after a mail, a name in that mail.
    With `hindsight` there are more queries, which use words of the target.
    """
    question = scenario.question
    asked = content_words(question)
    bridge = _bridge(question, target, read) if read else []
    queries = [] if read else [first_query(scenario, name_queries)]
    plans = [bridge]
    if hindsight:
        in_target = set(content_words(_text(target)))
        shared = [word for word in asked if word in in_target]
        plans += [
            shared,
            asked,
            [*bridge, *shared],
            [*shared, *content_words(target.subject)],
            content_words(target.subject),
        ]
    return queries + [_as_written(plan, [question, *map(_text, read), _text(target)]) for plan in plans if plan]


def can_be_told(reference: str, question: str, passage: str) -> bool:
    """Return whether a reader of `question` and `passage` could answer with `reference`.

    All its content words must occur in one of them in some inflection, and it must be short.
    """
    known = set(content_stems(f"{question}\n{passage}"))
    return len(reference.split()) <= MAX_ANSWER_WORDS and known.issuperset(content_stems(reference))


def play_oracle(
    scenario: Scenario,
    mailbox: Mailbox,
    gold_ids: list[int],
    settings: AgentSettings,
    *,
    hindsight: bool = True,
    show: DemonstrationSettings = _DEFAULT,
) -> AgentRun:
    """Search for each gold mail in order, read it, and answer with the reference.

    `gold_ids` are the short ids of the gold mails. A gold mail that no query finds is left out. If none is found, the
    episode ends without an answer.

    Without `hindsight` the oracle uses only the question and what it has read. It writes its queries from these, opens
    the first hit, and answers if the reference follows from what it has read (`can_be_told`). If the first hit of the first
    search is not the mail, but that of a colleague who asks the same question, it opens up to `show.max_wrong_reads` more. If
    that does not lead to the reference, the episode ends without an answer. With `show.demonstrated_hits` other than
    `first` it opens the mail at once if it is one of the first three hits, which `even` reorders to that end.
    """
    started = time.monotonic()
    moved = _Moved(mailbox)
    if show.demonstrated_hits == "even" and not hindsight:
        mailbox = cast(Mailbox, moved)
    places = random.Random(f"places-{scenario.id}")
    chooses = hindsight or show.demonstrated_hits != "first"
    tools = MailTools(mailbox, settings)
    record: list[Any] = list(opening_messages(scenario.question, mailbox, settings))
    calls: list[ToolCallRecord] = []
    shown: set[int] = set()
    read: list[EmailView] = []
    answer: FinalAnswer | None = None

    def act(name: str, arguments: dict[str, Any]) -> None:
        nonlocal answer
        result = tools.call(name, arguments)
        text = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        record.append({"role": "assistant", "content": text})
        calls.append(
            ToolCallRecord(
                name=name,
                arguments=arguments,
                observation=result.observation,
                email_ids=result.email_ids,
                passage_ids=result.passage_ids,
            )
        )
        if result.final is not None:
            answer = result.final
            return
        observation = observation_of(calls[-1], scenario.question)
        record.append({"role": "tool", "tool_call_id": f"call_{len(calls)}", "content": observation})
        if name == SEARCH:
            shown.update(result.email_ids)

    def opened(query: str, target: EmailView) -> list[int]:
        """Return the ids of the hits to read up to `target`, none if this query does not lead there."""
        found = [hit.id for hit in mailbox.search([query], max_results=settings.max_results)]
        place = found.index(target.id) if target.id in found else len(found)
        # After a later search, the hits before the target may be mails that were read already.
        furthest = PASSAGE_HITS - 1 if chooses else 0 if read else show.max_wrong_reads
        if place == len(found) or (place > furthest and not hindsight):
            return []
        return [target.id] if chooses else found[: place + 1]

    targets = [mail for gold_id in gold_ids if (mail := mailbox.read(gold_id)) is not None]
    for target in targets:
        to_read = [target.id]
        moved.target, moved.place = target.id, places.randrange(PASSAGE_HITS)
        if target.id not in shown or not hindsight:
            plans = (
                (query, opened(query, target))
                for query in _queries(scenario, target, read, hindsight, show.name_queries)
            )
            query, to_read = next(((query, ids) for query, ids in plans if ids), ("", []))
            if not to_read and hindsight:
                continue
            if not to_read:
                break
            act(SEARCH, {"keywords": [query]})
        for mail_id in to_read:
            act(READ, {"email_id": tools.number_of(mail_id)})
        read.append(target)
    if read and (
        hindsight or (read == targets and can_be_told(scenario.answer, scenario.question, calls[-1].observation))
    ):
        act(FINAL_ANSWER, {"answer": scenario.answer, "source_ids": [tools.number_of(mail.id) for mail in read]})
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
    """Return an oracle episode as a trajectory for supervised fine-tuning."""
    return art.Trajectory(
        messages_and_choices=run.record,
        tools=tool_schemas(),
        reward=1.0,
        metadata={"scenario_id": scenario.id, "kind": scenario.kind},
    )
