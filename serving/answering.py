"""Path of a question through the service: checks, queue, agent, reply, record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from environment.email_db import Mailbox, parse_query_date
from environment.errors import BadMail
from environment.mail_text import near_address
from serving.access import Caller
from serving.admission import Admission, Ticket, TurnedAway
from serving.bodies import Answer, Question, Reply, ReplyMetadata, TaskReply
from serving.errors import Rejected
from serving.events import EventQueue
from serving.feedback import FeedbackQueue
from serving.log import cause
from serving.metrics import Metrics
from serving.recording import RunRecorder
from serving.results import Result, Results
from serving.service import AnswerService, AskedQuestion, ModelUnavailable, PromptTooLong, Service
from serving.settings import ServingSettings

RECORDING_SECONDS_AT_EXIT = 1.0

Given = TypeVar("Given", Reply, TaskReply)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deployed:
    """A deployment, as its service sees it."""

    load: Callable[[], Any]
    """Starts the service."""
    unload: Callable[[], None]
    record: Callable[[Any], None]
    """Writes the pipeline run of one reply."""
    name: str
    settings: ServingSettings
    metrics: Metrics
    several_keys: bool


class Answering(ABC, Generic[Given]):
    """What the routes share while the service is open. For one event loop."""

    service: Service[Any, Any]
    admission: Admission
    recorder: RunRecorder

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self._settings, self._metrics = deployed.settings, deployed.metrics
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Load the service, and unload it at the end."""
        self.service = self._deployed.load()
        settings, metrics, capacity = self._settings, self._metrics, self.service.server.capacity
        per_caller = max(1, settings.max_waiting // 2) if self._deployed.several_keys else None
        self.admission = Admission(
            capacity, max_waiting=settings.max_waiting, max_wait=settings.max_wait, per_caller=per_caller
        )
        self.recorder = RunRecorder(self._deployed.record, self._not_recorded)
        metrics.capacity.set(capacity)
        metrics.running.set_function(lambda: self.admission.running)
        metrics.waiting.set_function(lambda: self.admission.waiting)
        metrics.policy_up.set_function(self.service.is_healthy)
        metrics.policy_restarts.set_function(lambda: getattr(self.service.server, "restarts", 0))
        yield
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self.recorder.close, RECORDING_SECONDS_AT_EXIT)
        self._deployed.unload()

    @contextlib.contextmanager
    def place(self, caller: Caller) -> Iterator[Ticket]:
        """Hold a place in the queue. Raises `Rejected`."""
        self._require_model()
        try:
            ticket = self.admission.join(caller.name)
        except TurnedAway as refusal:
            raise self._turned_away(refusal) from None
        try:
            yield ticket
        finally:
            ticket.leave()

    async def answer(
        self,
        ticket: Ticket,
        asked: Any,
        timeout: float | None,
        caller: Caller,
        request_id: str,
        watcher: EventQueue | None = None,
        entered: Callable[[], None] | None = None,
    ) -> Given:
        """Wait for a place, run the agent, and queue the answer to be recorded. Raises `Rejected`."""
        started = time.monotonic()
        seconds = timeout or self._settings.timeout
        try:
            async with ticket:
                if entered:
                    entered()
                self._metrics.queue_seconds.observe(ticket.queued_seconds)
                answer = await asyncio.wrap_future(self.service.start(asked, timeout=seconds, watcher=watcher))
        except TurnedAway as refusal:
            raise self._turned_away(refusal) from None
        except asyncio.CancelledError:
            self._metrics.outcomes.labels("cancelled").inc()
            raise
        except Exception as error:
            raise self._failure(error, seconds, request_id) from error
        self._metrics.outcomes.labels(answer.outcome).inc()
        self._metrics.episode_seconds.observe(answer.seconds)
        self._metrics.tokens.inc(answer.sampled_tokens)
        episode = {name: getattr(answer, name) for name in ("outcome", "turns", "seconds")}
        metadata = {
            "request_id": request_id,
            "run_name": f"answer-{request_id}",
            "deployment_name": self._deployed.name,
            "parameters_used": asked.question,
            "episode": {**episode, "queued_seconds": round(ticket.queued_seconds, 3)},
            "model": self.service.model,
        }
        reply = self._reply(answer, metadata, time.monotonic() - started, caller=caller)
        self.service.keep_to_record(request_id, answer)
        self.recorder.add(reply)
        return reply

    @abstractmethod
    def _reply(self, answer: Any, metadata: dict[str, Any], seconds: float, caller: Caller) -> Given:
        """Return the reply. `metadata` are the fields of its metadata, `seconds` those since the request."""

    def _not_recorded(self, reply: Given) -> None:
        self._metrics.unrecorded.inc()
        self.service.forget(reply.metadata.request_id)

    def _require_model(self) -> None:
        if not self.service.is_healthy():
            raise Rejected(503, "the model's server is being started again: ask again later", {"Retry-After": "10"})

    def _turned_away(self, refusal: TurnedAway) -> Rejected:
        self._metrics.turned_away.labels(refusal.reason).inc()
        return Rejected(refusal.status, str(refusal), {"Retry-After": str(refusal.retry_after)})

    def _failure(self, error: Exception, timeout: float, request_id: str) -> Rejected:
        if isinstance(error, PromptTooLong):
            self._metrics.outcomes.labels("too_long").inc()
            return Rejected(422, f"parameters.question: {error}; ask in fewer words")
        fields = {"request_id": request_id, **cause(error)}
        if isinstance(error, TimeoutError):
            self._metrics.outcomes.labels("timeout").inc()
            logger.error("question timed out", extra={"fields": fields})
            return Rejected(504, f"no answer within {timeout:g} seconds; a request may set timeout, up to 300")
        if isinstance(error, ModelUnavailable):
            self._metrics.outcomes.labels("model_unavailable").inc()
            logger.error("model unavailable", extra={"fields": fields})
            return Rejected(503, "the model's server failed on this question: ask again later", {"Retry-After": "10"})
        self._metrics.outcomes.labels("failed").inc()
        logger.error("question failed", extra={"fields": fields})
        return Rejected(500, f"the agent failed on this question; the service's log has the cause under {request_id}")


class MailAnswering(Answering[Reply]):
    """Answer questions about inboxes, at once or in the background."""

    service: AnswerService

    def __init__(self, deployed: Deployed, feedback: FeedbackQueue) -> None:
        """`feedback` signs the tokens that let callers rate answers."""
        super().__init__(deployed)
        self._feedback = feedback
        self.results = Results(deployed.settings.max_results, deployed.settings.result_seconds)

    def accepted(self, caller: Caller, question: Question, where: str) -> AskedQuestion:
        """Return a question with its inbox. Raises `Rejected` as `mailbox` does."""
        return AskedQuestion(question, self.mailbox(caller, question.inbox_address, question.query_date, f"{where}."))

    def mailbox(self, caller: Caller, address: str, date: str, where: str = "") -> Mailbox:
        """Return the inbox of `address` as of `date`. `where` begins the name of the field that is wrong.

        Raises `Rejected` when the date is malformed, the caller may not ask about the inbox, or the database does not
        know it.
        """
        try:
            query_date = parse_query_date(date)
        except BadMail as error:
            raise Rejected(422, f"{where}query_date: {error}") from None
        with contextlib.suppress(BadMail):
            if caller.may_ask(address):
                return self.service.database.mailbox(address, query_date)
        # The same words for both: this key must not learn whether the address exists.
        near = near_address(address, caller.allowed(self.service.inboxes()))
        raise Rejected(404, f"{where}inbox_address: unknown inbox: no mail is from or to this address{near}")

    def submit(self, caller: Caller, questions: Sequence[AskedQuestion], timeout: float | None) -> list[Result]:
        """Answer the questions in the background. Raises `Rejected`."""
        self._require_model()
        try:
            results = self.results.add(caller.name, len(questions))
        except TurnedAway as refusal:
            raise self._turned_away(refusal) from None
        for result, asked in zip(results, questions, strict=True):
            task = asyncio.create_task(self._answer_later(result, asked, timeout, caller))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return results

    async def _answer_later(self, result: Result, asked: AskedQuestion, timeout: float | None, caller: Caller) -> None:
        def entered() -> None:
            result.status = "running"

        ticket = self.admission.submitted(caller.name)
        try:
            result.reply = await self.answer(ticket, asked, timeout, caller, result.id, entered=entered)
            result.status = "done"
        except Rejected as rejected:
            result.status, result.error = "failed", str(rejected)
        except Exception as error:  # a result that never finishes would never expire
            logger.error("unexpected error", extra={"fields": {"request_id": result.id, **cause(error)}})
            result.status = "failed"
            result.error = f"the service failed on this question; its log has the cause under {result.id}"
        self.results.finished(result)

    def _reply(self, answer: Answer, metadata: dict[str, Any], seconds: float, caller: Caller) -> Reply:
        request_id, question = metadata["request_id"], metadata["parameters_used"]
        return Reply(
            **answer.model_dump(include={"question", "answer", "source_ids", "success", "proven"}),
            sources=answer.sources,
            feedback_token=self._feedback.token(request_id, caller.name, question, answer),
            execution_time=round(seconds, 3),
            metadata=ReplyMetadata.model_validate(metadata),
        )
