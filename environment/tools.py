"""The three tools of the e-mail search task, over one mailbox at one moment.

Observations are short, because a model on two cores reads about 400 tokens per second. A Message-ID takes 35 tokens, so an
episode numbers the mails that it shows: 1, 2, 3. A mail that no observation has shown has no number and cannot be read or
cited. A malformed call returns a line of text, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from environment.email_db import Mailbox
from environment.errors import QueryTimeout
from environment.mail_text import condensed, one_line
from environment.models import EmailView, FinalAnswer, SearchResult
from environment.snippets import ELLIPSIS, densest_start
from environment.tool_arguments import AnswerArguments, ReadArguments, SearchArguments, faulty_option
from environment.words import query_words

SEARCH = "search_inbox_tool"
READ = "read_email_tool"
FINAL_ANSWER = "return_final_answer_tool"


def _schema(name: str, description: str, properties: dict[str, dict[str, Any]]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def tool_schemas() -> list[dict[str, Any]]:
    """Return the tools as OpenAI tool definitions, without their optional arguments.

    The tools accept the filters of a search and the position to read on from too. Describing them makes every prompt longer.
    """
    return [
        _schema(SEARCH, "Find mails by keywords.", {"keywords": {"type": "array", "items": {"type": "string"}}}),
        _schema(READ, "Read one mail.", {"email_id": {"type": "integer"}}),
        _schema(
            FINAL_ANSWER,
            "Answer the question and cite the mails that prove it.",
            {"answer": {"type": "string"}, "source_ids": {"type": "array", "items": {"type": "integer"}}},
        ),
    ]


PASSAGE_HITS = 3
"""First hits of a search that show a passage. On real mail they hold the right mail for 97% of the questions."""
_MAX_SUBJECT_CHARS = 80
_MAX_PEOPLE = 3
_MAX_THREAD = 5


class ToolSettings(Protocol):
    """Limits of what a tool shows."""

    @property
    def max_results(self) -> int:
        """Number of hits of a search without `max_results`, at most 20."""

    @property
    def read_chars(self) -> int:
        """Characters of a mail's body that one read shows."""

    @property
    def passage_chars(self) -> int:
        """Characters of the passage that a search shows of each of its first hits; 0: eight words, as for the others."""


class ToolResult(BaseModel):
    """Result of one tool call. `final` ends the episode."""

    observation: str
    final: FinalAnswer | None = None
    invalid: bool = False
    """The call was malformed: an unknown tool or unusable arguments."""
    email_ids: list[int] = []
    """Database ids of the mails in the observation: hits of a search, the mail read, or the mails cited."""
    passage_ids: list[int] = []
    """Of the hits of a search, those shown with a passage."""


class MailTools:
    """The tools of one mailbox and one episode. A read of a long mail shows the passage that matches the last search."""

    def __init__(self, mailbox: Mailbox, settings: ToolSettings) -> None:
        self.mailbox = mailbox
        self.settings = settings
        self._domain = "@" + mailbox.address.rpartition("@")[2]
        self._sought: frozenset[str] = frozenset()
        self._numbers: dict[int, int] = {}
        self._calls: dict[str, Callable[[dict[str, Any]], ToolResult]] = {
            SEARCH: self._search,
            READ: self._read,
            FINAL_ANSWER: self._final_answer,
        }

    def fork(self) -> MailTools:
        """Return the tools of an episode that has been the same up to now and goes on differently."""
        other = MailTools(self.mailbox, self.settings)
        other._sought, other._numbers = self._sought, dict(self._numbers)
        return other

    def call(self, name: str, arguments: object) -> ToolResult:
        """Execute one tool call as a model wrote it. No name or arguments raise an exception."""
        tool = self._calls.get(name) if isinstance(name, str) else None
        if tool is None:
            return _invalid(f"No such tool. Tools: {', '.join(self._calls)}.")
        try:
            return tool(arguments if isinstance(arguments, dict) else {})
        except QueryTimeout:
            return ToolResult(observation="That took too long. Try fewer or rarer words.")

    def number_of(self, email_id: int) -> int:
        """Return the number of a mail in this episode. A mail without one gets the next: 1, 2, 3."""
        return self._numbers.setdefault(email_id, len(self._numbers) + 1)

    def _numbered(self, number: int | None) -> EmailView | None:
        """Return the mail that was shown under `number`."""
        shown = list(self._numbers)
        return self.mailbox.read(shown[number - 1]) if number is not None and 1 <= number <= len(shown) else None

    def _search(self, arguments: dict[str, Any]) -> ToolResult:
        try:
            asked = SearchArguments.model_validate(arguments)
        except ValidationError as error:
            if option := faulty_option(error):
                return _invalid(f"{SEARCH} expects {option[0]} to be {option[1]}.")
            return _invalid(f'{SEARCH} expects {{"keywords": [words]}}.')
        hits = self.mailbox.search(
            asked.keywords,
            max_results=self.settings.max_results if asked.max_results is None else asked.max_results,
            sent_before=asked.sent_before,
            sent_after=asked.sent_after,
            from_addr=asked.from_addr,
            to_addr=asked.to_addr,
        )
        self._sought = frozenset(query_words(asked.keywords).values())
        passages = self._passages(hits[:PASSAGE_HITS])
        lines = [
            f"{self.number_of(hit.id)} | {self._day(hit.date)} | {self._person(hit.from_address)} | {_subject(hit.subject)} | "
            f"{passages.get(hit.id, hit.snippet)}"
            for hit in hits
        ]
        return ToolResult(
            observation="\n".join(lines) or "No mails found.",
            email_ids=[hit.id for hit in hits],
            passage_ids=list(passages),
        )

    def _passages(self, hits: Sequence[SearchResult]) -> dict[int, str]:
        """Return the passage of each hit that matches the search best, on one line; none if only snippets are shown."""
        length = self.settings.passage_chars
        passages: dict[int, str] = {}
        for hit in hits if length else ():
            if mail := self.mailbox.read(hit.id):
                body = condensed(mail.body, mail.subject)
                start = densest_start(body, self._sought, length) if len(body) > length else 0
                passage, end = _cut(body, start, length)
                shown = f"{ELLIPSIS if start else ''}{one_line(passage)}{ELLIPSIS if end < len(body) else ''}"
                passages |= {hit.id: shown} if shown else {}
        return passages

    def _read(self, arguments: dict[str, Any]) -> ToolResult:
        try:
            asked = ReadArguments.model_validate(arguments)
        except ValidationError:
            return _invalid(f'{READ} expects {{"email_id": number}}.')
        mail = self._numbered(asked.email_id)
        if mail is None:
            return ToolResult(observation="No mail with that number has been found yet.")
        return ToolResult(observation=self._show(mail, asked.start), email_ids=[mail.id])

    def _final_answer(self, arguments: dict[str, Any]) -> ToolResult:
        try:
            given = AnswerArguments.model_validate(arguments)
        except ValidationError:
            return _invalid(f'{FINAL_ANSWER} expects {{"answer": text, "source_ids": [numbers]}}.')
        cited = {
            mail.id: mail.message_id for source in given.source_ids if (mail := self._numbered(source)) is not None
        }
        return ToolResult(
            observation="Answer returned.",
            final=FinalAnswer(answer=given.answer, source_ids=tuple(cited.values())),
            email_ids=list(cited),
        )

    def _show(self, mail: EmailView, start: int | None) -> str:
        """Return the mail's header and a passage of its body from character `start` on, cut between words.

        `None` starts where the body matches the last search best.
        """
        sender = self._person(mail.from_address)
        head = [f"From: {mail.from_name} <{sender}>" if mail.from_name else f"From: {sender}"]
        # Recipients are worth their tokens only in mail that the owner sent.
        if mail.from_address == self.mailbox.address and (addresses := (*mail.to_addresses, *mail.cc_addresses)):
            more = f" +{len(addresses) - _MAX_PEOPLE}" if len(addresses) > _MAX_PEOPLE else ""
            head.append(f"To: {', '.join(map(self._person, addresses[:_MAX_PEOPLE]))}{more}")
        head += [f"Date: {self._day(mail.date)} {mail.date:%H:%M}", f"Subject: {_subject(mail.subject)}"]
        if mail.thread:
            head.append(
                f"Thread: {', '.join(str(self.number_of(email_id)) for email_id in mail.thread[-_MAX_THREAD:])}"
            )
        body = condensed(mail.body, mail.subject)
        length = self.settings.read_chars
        before = ""
        if start is None:
            start = densest_start(body, self._sought, length) if len(body) > length else 0
            before = '(cut; begins with "start": 0)… ' if start else ""
        passage, end = _cut(body, max(start, 0), length)
        if end >= len(body):
            return "\n".join([*head, "", before + (passage or f"(the mail ends at {len(body)})")])
        return "\n".join([*head, "", f'{before}{passage} …(cut; read on with "start": {end})'])

    def _day(self, date: datetime) -> str:
        """Return a day without the current year, which saves five tokens per line."""
        return f"{date.day} {date:%b}" + ("" if date.year == self.mailbox.query_date.year else f" {date.year}")

    def _person(self, address: str) -> str:
        """Return an address, for colleagues of the owner only its local part."""
        return address.removesuffix(self._domain) or "(unknown)"


def _cut(body: str, start: int, length: int) -> tuple[str, int]:
    """Return at most `length` characters of `body` from `start` on, cut between words, and where they end."""
    end = start + length
    if end < len(body):
        end = max(body.rfind(" ", start + 1, end), body.rfind("\n", start + 1, end)) + 1 or end
    return body[start:end].strip(), end


def _invalid(observation: str) -> ToolResult:
    return ToolResult(observation=observation, invalid=True)


def _subject(subject: str) -> str:
    if not subject:
        return "(no subject)"
    return subject if len(subject) <= _MAX_SUBJECT_CHARS else f"{subject[:_MAX_SUBJECT_CHARS].rstrip()}…"
