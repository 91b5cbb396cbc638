"""What a deployed service holds from start to end: the policy's server, the mail database, and the loop on which agents run."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Protocol

from openai import APIConnectionError, BadRequestError, InternalServerError

from agent.rollout import AgentRun, Watcher, answer_question
from agent.settings import AgentSettings
from environment.email_db import Mailbox, MailDatabase, parse_query_date
from environment.mail_text import normalise_address
from environment.tools import READ
from serving.answer import Answer, Question, ServedModel, Source
from serving.proof import find_proof
from training.task import Policy

UNPROVEN = "unproven"
MAX_BODY_CHARS = 20_000
EXAMPLES_PER_INBOX = 5
RECORDABLE_ANSWERS = 1_000
_TOKENS = re.compile(r"(\d[\d,]*) tokens")
_TOO_LONG = re.compile(r"prompt has \d+ tokens|context length|max_model_len|maximum model length", re.IGNORECASE)


class PolicyServer(Protocol):
    """The server of the policy, in this process or another."""

    base_url: str
    capacity: int
    """Conversations that it computes together."""

    def healthy(self) -> bool:
        """Whether it answers; returns at once."""

    def close(self) -> None: ...


class PromptTooLong(Exception):
    """The question alone fills the model's context."""


class ModelUnavailable(Exception):
    """The policy's server is down or failing."""


@dataclass(frozen=True)
class Answered:
    """An answer with the mails that it cites."""

    answer: Answer
    sources: list[Source]
    sampled_tokens: int


class AnswerService:
    """Answers questions with one policy that is loaded already. Threads may share it.

    Episodes of all callers run on one event loop: they share its connections, and the policy's server batches them.
    """

    def __init__(
        self,
        server: PolicyServer,
        policy: Callable[[str], Policy],
        database: MailDatabase,
        settings: AgentSettings,
        model: ServedModel,
        examples: Mapping[str, Sequence[Question]] | None = None,
    ) -> None:
        """`policy` makes the policy from the server's base URL; `examples` are answerable questions by inbox."""
        self.server = server
        self.database = database
        self.settings = settings
        self.model = model
        self._policy = policy
        self._examples = examples or {}
        self._inboxes = database.inboxes_by_size()
        self._to_record: OrderedDict[str, Answer] = OrderedDict()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent-episodes", daemon=True)
        self._thread.start()

    def mailbox(self, question: Question) -> Mailbox:
        """The inbox that is asked about, as it was then. Raises `BadInput` when it is unknown."""
        return self.database.mailbox(question.inbox_address, parse_query_date(question.query_date))

    def inboxes(self) -> list[str]:
        """Every address that sent or received mail, those with the most mail first."""
        return self._inboxes

    def examples(self, inbox: str) -> list[Question]:
        """A few questions that this inbox is known to answer."""
        return list(self._examples.get(normalise_address(inbox), ()))[:EXAMPLES_PER_INBOX]

    def first_examples(self, may_ask: Callable[[str], bool]) -> list[Question]:
        """One such question to each of a few inboxes that may be asked."""
        allowed = (questions[0] for inbox, questions in self._examples.items() if questions and may_ask(inbox))
        return list(islice(allowed, EXAMPLES_PER_INBOX))

    def start(
        self, question: Question, *, timeout: float | None = None, watcher: Watcher | None = None
    ) -> Future[Answered]:
        """Run the agent in the background. Cancel the future to stop it, and the sampling of its reply with it.

        The future raises:
            BadInput: unknown inbox.
            TimeoutError: after `timeout` seconds, or when the policy's server stands still.
            PromptTooLong: the question does not fit into the model's context.
            ModelUnavailable: the policy's server is down.
            openai.OpenAIError: it failed in another way.
        """
        return asyncio.run_coroutine_threadsafe(self._answer(question, timeout, watcher), self._loop)

    def answer(self, question: Question) -> Answer:
        """The same for callers that wait. Raises what the future of `start` raises."""
        return self.start(question).result().answer

    async def _answer(self, question: Question, timeout: float | None, watcher: Watcher | None) -> Answered:
        mailbox = self.mailbox(question)
        try:
            policy = self._policy(self.server.base_url)
            async with asyncio.timeout(timeout):
                run = await answer_question(policy, mailbox, question.question, self.settings, watcher=watcher)
        except BadRequestError as error:
            if _TOO_LONG.search(str(error)):  # of a prompt only the question has no limit in tokens
                raise PromptTooLong(_in_tokens(str(error))) from error
            raise
        except (APIConnectionError, InternalServerError) as error:
            raise ModelUnavailable from error
        return answered(run, question, mailbox)

    def keep_to_record(self, request_id: str, answer: Answer) -> None:
        """Keep an answer for the pipeline run that will record it."""
        self._to_record[request_id] = answer
        while len(self._to_record) > RECORDABLE_ANSWERS:
            self._to_record.popitem(last=False)

    def take_recorded(self, request_id: str) -> Answer:
        """The answer that was kept under `request_id`. Raises KeyError when there is none."""
        return self._to_record.pop(request_id)

    def warm_up(self) -> None:
        """Takes the first sampled token of a question, so that the service neither starts broken nor slow.

        It leaves the prompt's part that all questions share in the server's prefix cache. Raises what `answer` raises.
        """
        mailbox = self.database.mailbox(self.database.inboxes()[0], datetime.now(UTC))
        policy = self._policy(self.server.base_url).model_copy(update={"max_tokens": 1})
        asyncio.run_coroutine_threadsafe(
            answer_question(policy, mailbox, "Is anybody there?", self.settings), self._loop
        ).result()

    def is_healthy(self) -> bool:
        """Whether the policy's server answers. Returns at once."""
        return self.server.healthy()

    def close(self) -> None:
        """Stops the episodes and the policy's server and closes the database."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self.server.close()
        self.database.close()


def answered(run: AgentRun, question: Question, mailbox: Mailbox) -> Answered:
    """The answer of an episode, its cited mails, and what of it they prove."""
    final = run.answer
    read = {email_id for call in run.calls if call.name == READ and not call.invalid for email_id in call.email_ids}
    sources: list[Source] = []
    cited = run.calls[-1].email_ids if final else []
    for email_id in cited:
        mail = mailbox.read(email_id)
        assert mail is not None and final is not None, "a final answer cites mails of this mailbox"
        body = mail.body[:MAX_BODY_CHARS]
        fields = {"subject": mail.subject, "from_address": mail.from_address, "body": body}
        proof = find_proof(question.question, final.answer, fields)
        sources.append(
            Source(
                message_id=mail.message_id,
                date=mail.date,
                from_address=mail.from_address,
                to_addresses=list(mail.to_addresses),
                subject=mail.subject,
                body=body,
                read=email_id in read,
                found=proof.found,
                marks=list(proof.marks),
            )
        )
    success = any(source.read for source in sources)
    answer = Answer(
        question=question.question,
        answer=final.answer if final else None,
        source_ids=list(final.source_ids) if final else [],
        success=success,
        outcome=UNPROVEN if final and not success else run.outcome,
        turns=run.turns,
        seconds=round(run.seconds, 3),
        proven=any(source.found for source in sources),
    )
    return Answered(answer, sources, run.sampled_tokens)


def _in_tokens(message: str) -> str:
    """What a policy server's refusal says of sizes, and nothing else of it."""
    sizes = [int(size.replace(",", "")) for size in re.findall(r"\d[\d,]*\d", message)]
    prompt = _TOKENS.search(message)
    limit = re.search(r"(?:hold|context length is|max_model_len\D*|maximum model length\D*)\D*(\d+)", message)
    if prompt and limit:
        return f"the prompt has {int(prompt[1].replace(',', '')):,} tokens, and this model can hold {int(limit[1]):,}"
    return (
        f"the prompt has more tokens than this model can hold ({max(sizes):,})" if sizes else "the prompt is too long"
    )


def describe_model(checkpoint: str, step: int, base_model: str, database: MailDatabase) -> ServedModel:
    """A `ServedModel` for a model that this process has loaded just now."""
    return ServedModel(
        checkpoint=checkpoint,
        step=step,
        base_model=base_model,
        mails=database.email_count(),
        loaded_at=datetime.now(UTC),
        load_id=uuid.uuid4().hex,
        process_id=os.getpid(),
    )
