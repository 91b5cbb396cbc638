"""Write checked questions about a mail database, batch by batch, until there are enough or money or mails run out."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from agent.question_writing.author import QuestionAuthor, Reply, Request, Spent, request_for
from agent.question_writing.batches import Batch, batches_of, chosen_inboxes
from agent.question_writing.checks import QuestionChecks
from agent.question_writing.journal import Journal
from agent.question_writing.settings import QuestionSettings
from agent.settings import AgentSettings
from environment.email_db import MailDatabase
from environment.mail_text import LAST_DATE
from environment.sources.parquet import Question
from environment.tools import READ, MailTools
from training.errors import BadInput

MAILS_PER_BATCH = 10
"""Mails that the model sees at once: a few threads, and no more than a small model reads with care."""
QUESTIONS_PER_BATCH = 4
"""Questions that the model is asked for per batch. Not every mail has a fact worth asking about."""
CONCURRENT_BATCHES = 4
"""Batches asked about at the same time, which stays below the rate limits of a new account."""
MIN_REALISM = 0.5
"""Minimum `how_realistic` of a kept question: the model finds a user more likely than not to ask it."""
_FRUITLESS_BATCHES = 8
"""Stop after this many batches without a usable question: the model will not write any."""

Progress = Callable[["WritingReport", int], None]
"""Called after every batch with the report so far and the number of questions wanted."""


class WritingReport(BaseModel):
    """The kept questions, the reasons for rejected ones, and the cost of all replies, including those of earlier runs."""

    questions: list[Question] = []
    inboxes: int = 0
    batches: int = 0
    """Batches with a usable reply."""
    unusable: int = 0
    """Batches without one."""
    rejected: dict[str, int] = {}
    """Reason to number of rejected questions."""
    spent: Spent = Spent()
    stopped: Literal["enough", "max_cost", "mails"] = "mails"
    """Why writing ended: enough questions, no budget for another batch, or no further mails."""


def write_questions(
    database: MailDatabase,
    settings: QuestionSettings,
    *,
    read_chars: int,
    max_messages: int,
    seed: int,
    journal_folder: Path,
    fresh: str = "",
    progress: Progress = lambda report, wanted: None,
) -> WritingReport:
    """Write questions about the configured inboxes, in the order of inboxes and batches.

    The model sees mails as the agent's read tool shows them with `read_chars`, so it does not ask about text that the
    agent cannot read. Replies are stored in `journal_folder`, one file per model, its parameters and `fresh` (a name for
    starting over). So no request is paid for twice, and an interrupted run leads to the same questions.

    Raise BadInput for an unknown inbox, a model that cannot be asked, and when there is no usable question.
    """
    inboxes = chosen_inboxes(database, settings.question_inboxes)
    if not inboxes:
        raise BadInput("there is no mail to write questions about: the database is empty")
    asked = [settings.question_model, settings.question_api_base, settings.extra_litellm_params, fresh]
    key = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:10]
    with Journal(journal_folder / f"{key}.jsonl") as journal:
        writing = _Writing(database, settings, journal, read_chars, max_messages, progress)
        asyncio.run(writing.run({inbox: batches_of(database, inbox, MAILS_PER_BATCH, seed) for inbox in inboxes}))
    if not writing.report.questions:
        raise writing.fruitless()
    return writing.report


class _Writing:
    def __init__(
        self,
        database: MailDatabase,
        settings: QuestionSettings,
        journal: Journal,
        read_chars: int,
        max_messages: int,
        progress: Progress,
    ) -> None:
        self.report = WritingReport()
        self._database = database
        self._settings = settings
        self._journal = journal
        self._reader = AgentSettings(read_chars=read_chars)
        self._progress = progress
        self._author = QuestionAuthor(settings)
        self._checks = QuestionChecks(database, min_realism=MIN_REALISM, max_messages=max_messages)
        self._rejected: Counter[str] = Counter()

    async def run(self, batches: dict[str, list[Batch]]) -> None:
        report, settings = self.report, self._settings
        wanted = len(batches) * settings.questions_per_inbox
        for of_inbox in batches.values():
            enough = min(len(report.questions) + settings.questions_per_inbox, wanted)
            report.inboxes += 1
            await self._inbox(iter(of_inbox), enough, wanted)
            if report.stopped == "max_cost":
                return
        report.stopped = "enough" if len(report.questions) >= wanted else "mails"

    async def _inbox(self, batches: Iterator[Batch], enough: int, wanted: int) -> None:
        report = self.report
        while (missing := enough - len(report.questions)) > 0:
            size = self._wave_size(missing)
            if size < 1:
                report.stopped = "max_cost"
                return
            wave = list(islice(batches, size))
            if not wave:
                return
            texts = [self._texts(batch) for batch in wave]
            requests = [
                request_for(batch.inbox, mails, QUESTIONS_PER_BATCH) for batch, mails in zip(wave, texts, strict=True)
            ]
            # Wait for all of them, so that every reply is stored before a failure ends the run.
            budget = self._budget(len(wave))
            outcomes = await asyncio.gather(
                *(self._reply(request, budget) for request in requests), return_exceptions=True
            )
            replies = []
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
                replies.append(outcome)
            for batch, mails, reply in zip(wave, texts, replies, strict=True):
                self._take(batch, mails, reply, enough)
                self._progress(report, wanted)
            if not report.questions and report.batches + report.unusable >= _FRUITLESS_BATCHES:
                raise self.fruitless()

    def fruitless(self) -> BadInput:
        """Return the error for a run without a usable question."""
        report = self.report
        reasons = dict(self._rejected.most_common())
        if report.unusable:
            reasons = {"batches without a JSON reply": report.unusable, **reasons}
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "it wrote none"
        return BadInput(
            f"{self._settings.question_model} wrote no usable question about {report.batches + report.unusable} batches of mails "
            f"({why}; {report.spent}); try another question_model, or --no-cache to ask the same again"
        )

    def _wave_size(self, missing: int) -> int:
        """Return how many batches to request at once: no more than are likely needed and affordable."""
        settings, report = self._settings, self.report
        done = report.batches + report.unusable
        if not done:
            return 1  # a problem with the model shows at the first request
        size = min(CONCURRENT_BATCHES, -(-missing // QUESTIONS_PER_BATCH))
        if settings.max_cost is None:
            return size
        cost = report.spent.cost
        if cost is None:
            raise BadInput(
                f"max_cost: LiteLLM knows no price of {settings.question_model}; set input_cost_per_token and "
                "output_cost_per_token in extra_litellm_params, or max_cost=null"
            )
        return min(size, int((settings.max_cost - cost) * done / cost)) if cost else size

    def _budget(self, batches: int) -> float | None:
        """Return how many US dollars each of the next `batches` may cost, or None without a limit."""
        limit, cost = self._settings.max_cost, self.report.spent.cost
        return None if limit is None or cost is None else (limit - cost) / batches

    async def _reply(self, request: Request, budget: float | None) -> Reply:
        earlier = self._journal.reply_to(request.digest)
        if earlier and budget is not None:
            budget -= earlier.spent.cost or 0.0
        if earlier and (earlier.questions is not None or (budget is not None and budget <= 0)):
            return earlier
        return self._journal.add(request.digest, await self._author.write(request, budget))

    def _take(self, batch: Batch, texts: list[str], reply: Reply, enough: int) -> None:
        report = self.report
        report.spent += reply.spent
        if reply.questions is None:
            report.unusable += 1
            return
        report.batches += 1
        for written in reply.questions:
            if len(report.questions) >= enough:
                break
            outcome = self._checks.check(written, batch, texts)
            if isinstance(outcome, Question):
                report.questions.append(outcome)
            else:
                self._rejected[outcome] += 1
        report.rejected = dict(sorted(self._rejected.items()))

    def _texts(self, batch: Batch) -> list[str]:
        tools = MailTools(self._database.mailbox(batch.inbox, LAST_DATE), self._reader)
        return [
            _without_thread(tools.call(READ, {"email_id": tools.number_of(id)}).observation) for id in batch.mail_ids
        ]


def _without_thread(shown: str) -> str:
    """Leave out the numbers of other mails: they are those of an episode, not of the request."""
    head, blank, body = shown.partition("\n\n")
    lines = [line for line in head.split("\n") if not line.startswith("Thread: ")]
    return "\n".join(lines) + blank + body
