"""The services behind the HTTP interface: a policy server, the world of a task, and the event loop on which agents run."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Generic, Protocol, TypeVar

from openai import APIConnectionError, BadRequestError, InternalServerError

from agent.rollout import AgentRun, Watcher, answer_question
from agent.settings import AgentSettings
from environment.email_db import Mailbox, MailDatabase, parse_query_date
from environment.mail_text import normalise_address
from serving.bodies import Answer, Question, ServedModel, Source
from serving.proof import find_proof
from training.plugin import Attempt
from training.task import Policy

UNPROVEN = "unproven"
MAX_BODY_CHARS = 20_000
EXAMPLES_PER_INBOX = 5
CLOSE_SECONDS = 1.0
"""Time for cancelled episodes to end."""
_TOKENS = re.compile(r"(\d[\d,]*) tokens")
_TOO_LONG = re.compile(r"prompt has \d+ tokens|context length|max_model_len|maximum model length", re.IGNORECASE)


Asked = TypeVar("Asked")
"""What an episode is about."""
Ended = TypeVar("Ended", Answer, Attempt)
"""What an episode led to."""


class PolicyServer(Protocol):
    """The policy server, in this process or another."""

    base_url: str
    capacity: int
    """Conversations that it batches."""

    def healthy(self) -> bool:
        """Return at once whether it answers."""

    def close(self) -> None: ...


class PromptTooLong(Exception):
    """The question alone fills the model's context."""


class ModelUnavailable(Exception):
    """The policy server is down or fails."""


@dataclass(frozen=True)
class AskedQuestion:
    """A question with the inbox that it is about, as of its date."""

    question: Question
    mailbox: Mailbox


class Service(ABC, Generic[Asked, Ended]):
    """Answer questions with one loaded policy. Threads may share it.

    The episodes of all callers run on one event loop. They share its connections, and the policy server batches them.
    """

    def __init__(self, server: PolicyServer, policy: Callable[[str], Policy], model: ServedModel) -> None:
        """`policy` returns the policy at the server's base URL."""
        self.server = server
        self.model = model
        self._policy = policy
        self._to_record: dict[str, Ended] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent-episodes", daemon=True)
        self._thread.start()

    @abstractmethod
    async def _episode(self, policy: Policy, asked: Asked, watcher: Watcher | None) -> Ended:
        """Play one episode. `watcher` follows it if the task can tell what happens."""

    @abstractmethod
    async def _warm_up(self, policy: Policy) -> None:
        """Ask the policy for one token."""

    def start(self, asked: Asked, *, timeout: float | None = None, watcher: Watcher | None = None) -> Future[Ended]:
        """Run the agent in the background. Cancelling the future stops the agent and the sampling of its reply.

        The future raises:
            TimeoutError: after `timeout` seconds, or when the policy server makes no progress.
            PromptTooLong: the question does not fit into the model's context.
            ModelUnavailable: the policy server is down.
            openai.OpenAIError: the policy server failed in another way.
        """
        return asyncio.run_coroutine_threadsafe(self._answer(asked, timeout, watcher), self._loop)

    async def _answer(self, asked: Asked, timeout: float | None, watcher: Watcher | None) -> Ended:
        try:
            async with asyncio.timeout(timeout):
                return await self._episode(self._policy(self.server.base_url), asked, watcher)
        except BadRequestError as error:
            if _TOO_LONG.search(str(error)):  # the question is the only part of a prompt without a limit in tokens
                raise PromptTooLong(_in_tokens(str(error))) from error
            raise
        except (APIConnectionError, InternalServerError) as error:
            raise ModelUnavailable from error

    def keep_to_record(self, request_id: str, answer: Ended) -> None:
        """Keep an answer until the pipeline run that records it takes it, or `forget`."""
        self._to_record[request_id] = answer

    def take_recorded(self, request_id: str) -> Ended:
        """Return the answer kept under `request_id`, once. Raises KeyError when there is none."""
        return self._to_record.pop(request_id)

    def forget(self, request_id: str) -> None:
        """Drop the answer kept under `request_id`, if there is one: nothing will record it."""
        self._to_record.pop(request_id, None)

    def warm_up(self) -> None:
        """Sample one token, so that a broken service fails at its start and the first question is fast.

        This leaves the common prefix of all prompts in the server's prefix cache. Raises what `answer` raises.
        """
        policy = self._policy(self.server.base_url).model_copy(update={"max_tokens": 1})
        asyncio.run_coroutine_threadsafe(self._warm_up(policy), self._loop).result()

    def is_healthy(self) -> bool:
        """Return at once whether the policy server answers."""
        return self.server.healthy()

    def close(self) -> None:
        """Stop the episodes and the policy server, and close the world of the task."""

        async def stop() -> None:
            if episodes := asyncio.all_tasks() - {asyncio.current_task()}:
                for episode in episodes:
                    episode.cancel()
                await asyncio.wait(episodes, timeout=CLOSE_SECONDS)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(stop(), self._loop)
        self._thread.join(timeout=2 * CLOSE_SECONDS)
        self.server.close()


class AnswerService(Service[AskedQuestion, Answer]):
    """Answer questions about mail."""

    def __init__(
        self,
        server: PolicyServer,
        policy: Callable[[str], Policy],
        database: MailDatabase,
        settings: AgentSettings,
        model: ServedModel,
        examples: Mapping[str, Sequence[Question]] | None = None,
    ) -> None:
        """`examples` are answerable questions by inbox."""
        super().__init__(server, policy, model)
        self.database = database
        self.settings = settings
        self._examples = examples or {}
        self._inboxes = database.inboxes_by_size()

    def inboxes(self) -> list[str]:
        """Return every address that sent or received mail, those with the most mail first."""
        return self._inboxes

    def examples(self, inbox: str) -> list[Question]:
        """Return a few questions that this inbox is known to answer."""
        return list(self._examples.get(normalise_address(inbox), ()))[:EXAMPLES_PER_INBOX]

    def first_examples(self, may_ask: Callable[[str], bool]) -> list[Question]:
        """Return one such question to each of a few inboxes for which `may_ask` is true."""
        allowed = (questions[0] for inbox, questions in self._examples.items() if questions and may_ask(inbox))
        return list(islice(allowed, EXAMPLES_PER_INBOX))

    def answer(self, question: Question) -> Answer:
        """Run the agent and wait for its answer.

        Raises what the future of `start` raises, and `BadInput` for an unknown inbox or a malformed date.
        """
        mailbox = self.database.mailbox(question.inbox_address, parse_query_date(question.query_date))
        return self.start(AskedQuestion(question, mailbox)).result()

    async def _episode(self, policy: Policy, asked: AskedQuestion, watcher: Watcher | None) -> Answer:
        question = asked.question.question
        run = await answer_question(policy, asked.mailbox, question, self.settings, watcher=watcher)
        return answered(run, question, asked.mailbox)

    async def _warm_up(self, policy: Policy) -> None:
        mailbox = self.database.mailbox(self.database.inboxes()[0], datetime.now(UTC))
        await answer_question(policy, mailbox, "Is anybody there?", self.settings)

    def close(self) -> None:
        super().close()
        self.database.close()


def answered(run: AgentRun, question: str, mailbox: Mailbox) -> Answer:
    """Return the answer of an episode with its cited mails and their proof."""
    final = run.answer
    read = {email_id for call in run.calls for email_id in call.read_ids}
    sources: list[Source] = []
    cited = run.calls[-1].email_ids if final else []
    for email_id in cited:
        mail = mailbox.read(email_id)
        assert mail is not None and final is not None, "a final answer cites mails of this mailbox"
        body = mail.body[:MAX_BODY_CHARS]
        fields = {"subject": mail.subject, "from_address": mail.from_address, "body": body}
        proof = find_proof(question, final.answer, fields)
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
    return Answer(
        question=question,
        answer=final.answer if final else None,
        source_ids=list(final.source_ids) if final else [],
        success=success,
        outcome=UNPROVEN if final and not success else run.outcome,
        turns=run.turns,
        seconds=round(run.seconds, 3),
        proven=any(source.found for source in sources),
        sources=sources,
        sampled_tokens=run.sampled_tokens,
    )


def _in_tokens(message: str) -> str:
    """Return the sizes in a policy server's refusal, and nothing else from it."""
    sizes = [int(size.replace(",", "")) for size in re.findall(r"\d[\d,]*\d", message)]
    prompt = _TOKENS.search(message)
    limit = re.search(r"(?:hold|context length is|max_model_len\D*|maximum model length\D*)\D*(\d+)", message)
    if prompt and limit:
        return f"the prompt has {int(prompt[1].replace(',', '')):,} tokens, and this model can hold {int(limit[1]):,}"
    return (
        f"the prompt has more tokens than this model can hold ({max(sizes):,})" if sizes else "the prompt is too long"
    )


def describe_model(checkpoint: str, run: str, step: int, base_model: str, mails: int | None = None) -> ServedModel:
    """Return the description of a model that this process has just loaded."""
    return ServedModel(
        checkpoint=checkpoint,
        run=run,
        step=step,
        base_model=base_model,
        mails=mails,
        loaded_at=datetime.now(UTC),
        load_id=uuid.uuid4().hex,
        process_id=os.getpid(),
    )
