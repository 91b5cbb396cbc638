"""`--pipeline ask`: one question on the command line, to a model that is loaded for it or to a running service."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from cluster.errors import RunFailed
from commands.running_service import accepted, find_service
from environment.email_db import MailDatabase, parse_query_date
from environment.errors import BadMail
from environment.mail_text import near_address
from reports.console import console, say
from serving.bodies import Mark, Question, Source, first_problem, today
from serving.events import EventQueue
from serving.service import AnswerService, AskedQuestion, ModelUnavailable, PromptTooLong
from steps.inference.service_lifecycle import load_service
from steps.model_registry import describe_other_mail, find_checkpoint, find_mail_database
from steps.project import MODELS
from training.backends.base_model import resolve_base_model
from training.errors import BadInput
from training.record.experiment import MAIL_TASK

_FIELDS = {"question", "answer", "source_ids", "success", "proven", "sources"}
_CONTEXT_CHARS = 60
_SHOWN_MARKS = 3
_SHOWN_INBOXES = 3

Show = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Asked:
    """What the user asks. Without an inbox, it is about the only one there is."""

    question: str
    inbox: str | None
    date: str | None
    checkpoint: str | None
    unpromoted: bool
    service: str | None
    base_model: str | None
    mail: str | None
    """`latest`: the mail that was prepared last, instead of that of the training."""


def run_ask(asked: Asked, *, steps: bool, as_json: bool) -> None:
    """Print the answer with the places in its mails that prove it, or all that is known of it as JSON.

    Raises:
        BadInput: the question is malformed, its inbox is unknown, or nothing is there that could answer.
        RunFailed: the model's server or the service failed.
    """

    def show(event: str, data: dict[str, Any]) -> None:
        if steps and not as_json and (line := _step(event, data)):
            say(line, quiet=True)

    given = _of_service(asked, asked.service, show) if asked.service is not None else _here(asked, show, quiet=as_json)
    if as_json:
        print(json.dumps({name: given[name] for name in sorted(_FIELDS)}, indent=1, ensure_ascii=False))
        return
    say(given["answer"] if given["answer"] is not None else "The agent gave up: it found no answer in this mailbox.")
    for source in given["sources"]:
        _print_source(Source.model_validate(source))
    if given["answer"] is not None and not given["proven"]:
        say("No cited mail has these words: read the mails before you rely on the answer.", alarm=True)


def _here(asked: Asked, show: Show, *, quiet: bool) -> dict[str, Any]:
    stored = find_checkpoint(asked.checkpoint, unpromoted=asked.unpromoted)
    if (task := stored.checkpoint.task) != MAIL_TASK:
        raise BadInput(f"--checkpoint: it was trained with task={task}, and --pipeline ask asks about mail")
    found = find_mail_database(stored, latest=asked.mail == "latest")
    if not quiet and (other := describe_other_mail(stored, found)):
        say(other)
    database: MailDatabase = found.load()
    with closing(database):
        question = _question(asked, lambda: database.inboxes_by_size())
        date = parse_query_date(question.query_date)
        try:
            database.mailbox(question.inbox_address, date)  # before the model is loaded
        except BadMail as error:
            hint = _in_latest(question.inbox_address, str(found.id))
            hint = hint or near_address(question.inbox_address, database.inboxes_by_size())
            raise BadInput(f"--inbox: {error}{hint}") from None
    source = asked.base_model or stored.checkpoint.manifest.base_model_source
    resolve_base_model(source, MODELS, progress=None if quiet else say)
    with console.status("loading the model") as status:
        service = load_service(checkpoint=stored.reference, mail_database=str(found.id), base_model=asked.base_model)
        assert isinstance(service, AnswerService)
        with closing(service):
            status.update("searching")
            return asyncio.run(_answered(service, question, show))


async def _answered(service: AnswerService, question: Question, show: Show) -> dict[str, Any]:
    mailbox = service.database.mailbox(question.inbox_address, parse_query_date(question.query_date))
    events = EventQueue(mailbox)
    answer = asyncio.wrap_future(service.start(AskedQuestion(question, mailbox), watcher=events))
    while not answer.done():
        await asyncio.wait({answer}, timeout=0.2)
        while event := events.get_nowait():
            show(event.event or "", event.data)
    try:
        given = answer.result()
    except PromptTooLong as error:
        raise BadInput(f"question: {error}; ask in fewer words") from None
    except (ModelUnavailable, TimeoutError) as error:
        raise RunFailed("the model's server failed on this question") from error
    return given.model_dump(mode="json") | {"sources": [source.model_dump(mode="json") for source in given.sources]}


def _of_service(asked: Asked, name: str, show: Show) -> dict[str, Any]:
    with console.status("searching"), find_service(name).client() as client:
        return _streamed(client, asked, show)


def _streamed(client: httpx.Client, asked: Asked, show: Show) -> dict[str, Any]:
    question = _question(asked, lambda: accepted(client.get("/inboxes", params={"limit": 200}))["inboxes"])
    event = ""
    with client.stream("POST", "/stream", json={"parameters": question.model_dump()}) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            accepted(response)
        for line in response.iter_lines():
            name, _, value = line.partition(":")
            if name == "event":
                event = value.strip()
            elif name == "data":
                data: dict[str, Any] = json.loads(value)
                if event == "answer":
                    return data
                if event == "error":
                    raise RunFailed(str(data["error"]))
                show(event, data)
    raise RunFailed("the service closed the connection before it answered")


def _in_latest(inbox: str, searched: str) -> str:
    """Return a hint to end a message if what `--pipeline data` prepared last is not `searched` and has this inbox, else ""."""
    # The message must come, whatever has become of other mail.
    with contextlib.suppress(BadMail, BadInput, OSError, RuntimeError):
        if str((latest := find_mail_database(latest=True)).id) != searched:
            database: MailDatabase = latest.load()
            with closing(database):
                return "; the mail that was prepared last has it: --mail latest" if database.knows(inbox) else ""
    return ""


def _question(asked: Asked, inboxes: Callable[[], Sequence[str]]) -> Question:
    inbox = asked.inbox
    if inbox is None:
        known = inboxes()
        if len(known) != 1:
            listed = ", ".join(known[:_SHOWN_INBOXES])
            raise BadInput(f"--inbox ADDRESS is needed, for there are {len(known):,} inboxes, such as {listed}")
        [inbox] = known
    date = today() if asked.date is None else asked.date
    try:
        return Question(question=asked.question, inbox_address=inbox, query_date=date)
    except ValidationError as error:
        raise BadInput(": ".join(first_problem(error))) from None


def _step(event: str, data: dict[str, Any]) -> str | None:
    if event == "waiting":
        return f"waiting: {data['position']} before this question"
    if event == "source":
        return f"   read: {data['date'][:10]}  {data['from_address']}  {data['subject']}"
    if event != "step":
        return None
    words = " ".join(data.get("keywords", []))
    found = f" {words}, {data['found']} found" if words and "found" in data else f" {words}"
    return f"{data['number']:2d} {data['action']}{found}".rstrip()


def _print_source(source: Source) -> None:
    say(f"\n  {source.date:%Y-%m-%d}  {source.from_address}  {source.subject}", quiet=not source.read)
    for mark in [mark for mark in source.marks if mark.field == "body"][:_SHOWN_MARKS]:
        say(f"      {_excerpt(source.body, mark)}")


def _excerpt(body: str, mark: Mark) -> str:
    start, end = max(0, mark.start - _CONTEXT_CHARS), mark.end + _CONTEXT_CHARS
    before, after = "…" if start else "", "…" if end < len(body) else ""
    proving = f"[{body[mark.start : mark.end]}]"
    return before + " ".join(f"{body[start : mark.start]}{proving}{body[mark.end : end]}".split()) + after
