"""The HTTP interface of the service, as a FastAPI application that knows nothing of how it is deployed."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from environment.errors import BadInput
from serving.access import Caller, Keys, Origins
from serving.admission import Admission, Ticket, TurnedAway
from serving.answer import (
    Accepted,
    Episode,
    ExampleQuery,
    Examples,
    Feedback,
    Health,
    Inboxes,
    InboxQuery,
    Invocation,
    Problem,
    Question,
    Reply,
    ReplyMetadata,
    ServedModel,
    StoredAnswer,
    Submission,
    Submitted,
)
from serving.events import EventQueue
from serving.feedback import FeedbackQueue, TokenRefused
from serving.log import cause
from serving.metrics import Metrics
from serving.middleware import Doors, Envelope, one_line, problem
from serving.recording import Record, RunRecorder
from serving.results import Result, Results
from serving.service import Answered, AnswerService, ModelUnavailable, PromptTooLong
from serving.settings import ServingSettings

PAGE = Path(__file__).with_name("page")
WAITING_NOTE_SECONDS = 2.0
RECORDING_SECONDS_AT_EXIT = 1.0

logger = logging.getLogger(__name__)


class Rejected(Exception):
    """A request that cannot be answered: the HTTP status, the line that tells its sender why, and headers."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ServiceApp:
    """The application's parts, and what its endpoints share. `asgi` is what a server runs."""

    def __init__(
        self,
        load: Callable[[], AnswerService],
        unload: Callable[[], None],
        record: Callable[[Record], None],
        *,
        name: str,
        settings: ServingSettings,
        keys: Keys,
        origins: Origins,
    ) -> None:
        """`load` gives the service when the application starts, `unload` ends it, `record` writes the run of one answer."""
        self.name = name
        self.settings = settings
        self.keys = keys
        self.metrics = Metrics()
        self.feedback = FeedbackQueue(settings.feedback_folder, keys.secret)
        self._load = load
        self._unload = unload
        self._record = record
        self._tasks: set[asyncio.Task[None]] = set()
        self.fastapi = FastAPIOffline(
            title="E-mail search agent",
            description="Answers questions about a mailbox and cites the mails that prove the answer.",
            version="1",
            lifespan=self._lifespan,
        )
        _add_routes(self.fastapi, self)
        _add_error_responses(self.fastapi)
        self.asgi: ASGIApp = Envelope(Doors(self.fastapi, origins), self.metrics)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.service = self._load()
        settings, capacity = self.settings, self.service.server.capacity
        per_caller = max(1, settings.max_waiting // 2) if len(self.keys) > 1 else None
        self.admission = Admission(
            capacity, max_waiting=settings.max_waiting, max_wait=settings.max_wait, per_caller=per_caller
        )
        self.results = Results(settings.max_results, settings.result_seconds)
        self.recorder = RunRecorder(self._record, self.metrics.unrecorded.inc)
        self.metrics.capacity.set(capacity)
        self.metrics.running.set_function(lambda: self.admission.running)
        self.metrics.waiting.set_function(lambda: self.admission.waiting)
        self.metrics.policy_up.set_function(self.service.is_healthy)
        self.metrics.policy_restarts.set_function(lambda: getattr(self.service.server, "restarts", 0))
        yield
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self.recorder.close, RECORDING_SECONDS_AT_EXIT)
        self._unload()

    def check(self, caller: Caller, question: Question, where: str) -> None:
        """Raise `Rejected` when the question cannot be asked by this caller, as far as the database can tell."""
        unknown = Rejected(404, f"{where}.inbox_address: unknown inbox: no mail is from or to this address")
        if not caller.may_ask(question.inbox_address):
            raise unknown  # whether the address exists is not for this key to know
        try:
            self.service.mailbox(question)
        except BadInput:
            raise unknown from None

    def require_model(self) -> None:
        """Raise `Rejected` while the model's server is down."""
        if not self.service.is_healthy():
            raise Rejected(503, "the model's server is being started again: ask again later", {"Retry-After": "10"})

    def join(self, caller: Caller) -> Ticket:
        """A place in the queue. Raises `Rejected`."""
        self.require_model()
        try:
            return self.admission.join(caller.name)
        except TurnedAway as refusal:
            raise self._turned_away(refusal) from None

    def _turned_away(self, refusal: TurnedAway) -> Rejected:
        self.metrics.turned_away.labels(refusal.reason).inc()
        return Rejected(refusal.status, str(refusal), {"Retry-After": str(refusal.retry_after)})

    async def answer(
        self,
        ticket: Ticket,
        question: Question,
        timeout: float | None,
        caller: Caller,
        request_id: str,
        watcher: EventQueue | None = None,
        entered: Callable[[], None] | None = None,
    ) -> Reply:
        """Wait for a place, run the agent, and hand the answer on to be recorded. Raises `Rejected`."""
        started = time.monotonic()
        try:
            async with ticket:
                if entered:
                    entered()
                self.metrics.queue_seconds.observe(ticket.queued_seconds)
                seconds = timeout or self.settings.timeout
                done = await asyncio.wrap_future(self.service.start(question, timeout=seconds, watcher=watcher))
        except TurnedAway as refusal:
            raise self._turned_away(refusal) from None
        except asyncio.CancelledError:
            self.metrics.outcomes.labels("cancelled").inc()
            raise
        except Exception as error:
            raise self._failure(error, timeout or self.settings.timeout, request_id) from error
        answer = done.answer
        self.metrics.outcomes.labels(answer.outcome).inc()
        self.metrics.episode_seconds.observe(answer.seconds)
        self.metrics.tokens.inc(done.sampled_tokens)
        run_name = f"answer-{request_id}"
        self.service.keep_to_record(request_id, answer)
        self.recorder.add(Record(request_id, run_name, question, answer))
        return self._reply(done, question, caller, request_id, run_name, ticket, time.monotonic() - started)

    def _failure(self, error: Exception, timeout: float, request_id: str) -> Rejected:
        if isinstance(error, PromptTooLong):
            self.metrics.outcomes.labels("too_long").inc()
            return Rejected(422, f"parameters.question: {error}; ask in fewer words")
        fields = {"request_id": request_id, **cause(error)}
        if isinstance(error, TimeoutError):
            self.metrics.outcomes.labels("timeout").inc()
            logger.error("question timed out", extra={"fields": fields})
            return Rejected(504, f"no answer within {timeout:g} seconds; a request may set timeout, up to 300")
        if isinstance(error, ModelUnavailable):
            self.metrics.outcomes.labels("model_unavailable").inc()
            logger.error("model unavailable", extra={"fields": fields})
            return Rejected(503, "the model's server failed on this question: ask again later", {"Retry-After": "10"})
        self.metrics.outcomes.labels("failed").inc()
        logger.error("question failed", extra={"fields": fields})
        return Rejected(500, f"the agent failed on this question; the service's log has the cause under {request_id}")

    def _reply(
        self,
        done: Answered,
        question: Question,
        caller: Caller,
        request_id: str,
        run_name: str,
        ticket: Ticket,
        seconds: float,
    ) -> Reply:
        answer = done.answer
        episode = Episode(
            outcome=answer.outcome,
            turns=answer.turns,
            seconds=answer.seconds,
            queued_seconds=round(ticket.queued_seconds, 3),
        )
        return Reply(
            **answer.model_dump(include={"question", "answer", "source_ids", "success", "proven"}),
            sources=done.sources,
            feedback_token=self.feedback.token(request_id, caller.name, question, answer),
            execution_time=round(seconds, 3),
            metadata=ReplyMetadata(
                request_id=request_id,
                run_name=run_name,
                deployment_name=self.name,
                parameters_used=question,
                episode=episode,
                model=self.service.model,
            ),
        )

    def submit(self, caller: Caller, submission: Submission) -> list[Result]:
        """Have the questions answered in the background. Raises `Rejected`."""
        questions = submission.questions()
        self.require_model()
        try:
            results = self.results.add(caller.name, len(questions))
        except TurnedAway as refusal:
            raise self._turned_away(refusal) from None
        for result, question in zip(results, questions, strict=True):
            task = asyncio.create_task(self._answer_later(result, question, submission.timeout, caller))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return results

    async def _answer_later(self, result: Result, question: Question, timeout: float | None, caller: Caller) -> None:
        def entered() -> None:
            result.status = "running"

        ticket = self.admission.submitted(caller.name)
        try:
            result.reply = await self.answer(ticket, question, timeout, caller, result.id, entered=entered)
            result.status = "done"
        except Rejected as rejected:
            result.status, result.error = "failed", str(rejected)
        except Exception as error:  # a result that is never finished is never forgotten
            logger.error("unexpected error", extra={"fields": {"request_id": result.id, **cause(error)}})
            result.status = "failed"
            result.error = f"the service failed on this question; its log has the cause under {result.id}"
        self.results.finished(result)


_STATUSES = {
    400: "the body is not JSON",
    401: "a key is needed, or this one is wrong",
    403: "the request comes from a page of another origin, or the token is not yours",
    404: "there is nothing of that name that this key may see",
    408: "the body came too slowly",
    409: "this answer has been rated already",
    410: "the token is too old",
    413: "the body is too large",
    415: "the body is not application/json",
    421: "the service is not known by this name",
    422: "a value is missing, unknown or out of bounds",
    429: "this key asks too much at once; see Retry-After",
    500: "the agent failed; the log has the cause under the request id",
    503: "the queue is full or the model is being started again; see Retry-After",
    504: "the time limit of the question has passed",
}
_BODY = (400, 403, 408, 413, 415, 421, 422)
_ASKING = (401, 404, 429, 500, 503, 504)


def _documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": _STATUSES[status]} for status in sorted(statuses)}


def _documented_beside_events(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same for a route whose own responses are events: its errors are JSON all the same."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
    return {status: {"content": content, "description": _STATUSES[status]} for status in sorted(statuses)}


def _add_routes(fastapi: FastAPI, app: ServiceApp) -> None:
    """Register every endpoint."""
    bearer = HTTPBearer(auto_error=False, description="a key of this service; not needed where none is set")

    def authenticated(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> Caller:
        caller = app.keys.caller(credentials.credentials if credentials else None)
        if caller is None:
            said = "this key is not known" if credentials else "a key is needed: send Authorization: Bearer KEY"
            raise Rejected(401, said, {"WWW-Authenticate": "Bearer"})
        request.state.caller = caller.name
        return caller

    asking = Annotated[Caller, Depends(authenticated)]

    @fastapi.post("/invoke", responses=_documented(*_BODY, *_ASKING), tags=["questions"])
    async def invoke(request: Request, invocation: Invocation, caller: asking) -> Reply:
        """Answer one question about one inbox, as it was on one day."""
        question = invocation.parameters
        app.check(caller, question, "parameters")
        ticket = app.join(caller)
        answering = asyncio.ensure_future(
            app.answer(ticket, question, invocation.timeout, caller, request.state.request_id)
        )
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                answering.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await answering
                raise Rejected(408, "the client went away")  # nobody reads this
            reply = await answering
        finally:
            gone.cancel()
            answering.cancel()
            ticket.leave()
        _log_outcome(request, reply)
        return reply

    async def queued(request: Request, invocation: Invocation, caller: asking) -> AsyncIterator[Ticket]:
        """All that can be refused with a status, before the stream begins."""
        app.check(caller, invocation.parameters, "parameters")
        ticket = app.join(caller)
        try:
            yield ticket
        finally:
            ticket.leave()

    @fastapi.post(
        "/stream",
        response_class=EventSourceResponse,
        responses=_documented_beside_events(*_BODY, *_ASKING),
        tags=["questions"],
    )
    async def stream(
        request: Request, invocation: Invocation, caller: asking, ticket: Annotated[Ticket, Depends(queued)]
    ) -> AsyncIterator[ServerSentEvent]:
        """The same as server-sent events, while it happens.

        `waiting` has the position in the queue, `step` a search or a read, `source` a mail that was read, `token` the next piece
        of the answer. The last event is `answer`, with the data of `/invoke`, or `error`, with those of an error response.
        """
        question, request_id = invocation.parameters, request.state.request_id
        events = EventQueue(app.service.mailbox(question))
        answering = asyncio.ensure_future(
            app.answer(ticket, question, invocation.timeout, caller, request_id, watcher=events)
        )
        taking: asyncio.Future[ServerSentEvent] | None = None
        told = 0
        try:
            while not answering.done():
                taking = taking or asyncio.ensure_future(events.get())
                await asyncio.wait(
                    {answering, taking}, timeout=WAITING_NOTE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if taking.done():
                    yield taking.result()
                    taking = None
                elif (position := app.admission.position(ticket)) and position != told:
                    told = position
                    yield ServerSentEvent(event="waiting", data={"position": position})
            if taking is not None and not taking.cancel():  # it was done already
                yield taking.result()
            while event := events.get_nowait():
                yield event
            reply = await answering
            _log_outcome(request, reply)
            yield ServerSentEvent(event="answer", data=reply.model_dump(mode="json"))
        except Rejected as rejected:
            data = {"success": False, "error": one_line(rejected), "request_id": request_id, "status": rejected.status}
            yield ServerSentEvent(event="error", data=data)
        finally:
            answering.cancel()
            if taking is not None:
                taking.cancel()

    @fastapi.post(
        "/submit",
        status_code=202,
        responses=_documented(*_BODY, 401, 404, 429, 503),
        tags=["questions"],
    )
    async def submit(submission: Submission, caller: asking) -> Submitted:
        """Have one or several questions answered in the background; `GET /answers/{id}` has the answers."""
        for place, question in enumerate(submission.questions()):
            app.check(caller, question, "parameters" if submission.parameters else f"batch.{place}")
        ids = [result.id for result in app.submit(caller, submission)]
        return Submitted(ids=ids, urls=[f"/answers/{id}" for id in ids])

    @fastapi.get("/answers/{answer_id}", responses=_documented(401, 403, 404, 421, 422), tags=["questions"])
    async def stored_answer(answer_id: str, caller: asking) -> StoredAnswer:
        """The answer of a submitted question, for the key that submitted it."""
        result = app.results.get(caller.name, answer_id)
        if result is None:
            raise Rejected(
                404, "there is no answer with this id for this key: it was never asked for, or is kept no longer"
            )
        return result.stored()

    @fastapi.post(
        "/feedback",
        status_code=201,
        responses=_documented(*_BODY, 401, 409, 410, 503),
        tags=["feedback"],
    )
    async def rate(feedback: Feedback, caller: asking) -> Accepted:
        """Rate an answer once. A person reviews ratings before they become questions to train or evaluate on."""
        try:
            await asyncio.to_thread(app.feedback.add, feedback, caller.name)
        except TokenRefused as refusal:
            raise Rejected(refusal.status, str(refusal)) from None
        except OSError as error:
            logger.error("feedback not stored", extra={"fields": cause(error)})
            raise Rejected(503, "feedback cannot be stored at the moment", {"Retry-After": "60"}) from None
        app.metrics.feedback.labels(feedback.verdict).inc()
        return Accepted()

    @fastapi.get("/inboxes", responses=_documented(401, 403, 421, 422), tags=["mail"])
    async def inboxes(caller: asking, query: Annotated[InboxQuery, Query()]) -> Inboxes:
        """Inboxes that this key may ask about."""
        wanted = query.contains.strip().lower()
        found = [inbox for inbox in app.service.inboxes() if wanted in inbox and caller.may_ask(inbox)]
        return Inboxes(inboxes=found[: query.limit], total=len(found))

    @fastapi.get("/examples", responses=_documented(401, 403, 404, 421, 422), tags=["mail"])
    async def examples(caller: asking, query: Annotated[ExampleQuery, Query()]) -> Examples:
        """Questions that an inbox is known to answer; without one, a question to each of some inboxes."""
        inbox = query.inbox
        if not inbox:
            return Examples(examples=app.service.first_examples(caller.may_ask))
        if not caller.may_ask(inbox):
            raise Rejected(404, "inbox: unknown inbox: no mail is from or to this address")
        return Examples(examples=app.service.examples(inbox))

    @fastapi.get("/model", responses=_documented(401, 403, 421), tags=["service"])
    async def model(caller: asking) -> ServedModel:
        """The checkpoint that answers, and since when it is loaded."""
        return app.service.model

    @fastapi.get("/health", responses={503: {"model": Health}}, tags=["service"])
    async def health(response: Response) -> Health:
        """200 while the model answers, 503 while it does not. Needs no key."""
        healthy = app.service.is_healthy()
        response.status_code = 200 if healthy else 503
        status = "healthy" if healthy else "the model's server does not answer"
        return Health(status=status, load_id=app.service.model.load_id)

    @fastapi.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **_documented(401, 403, 421)},
        tags=["service"],
    )
    async def metrics(caller: asking) -> Response:
        """Prometheus metrics."""
        return Response(app.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @fastapi.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", media_type="text/html", headers={"Cache-Control": "no-cache"})

    fastapi.mount("/page", StaticFiles(directory=PAGE), name="page")


def _add_error_responses(fastapi: FastAPI) -> None:
    """Every error has the same body: one line and the request id."""

    @fastapi.exception_handler(Rejected)
    async def rejected(request: Request, error: Rejected) -> JSONResponse:
        return problem(error.status, str(error), request.state.request_id, error.headers)

    @fastapi.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            said = f"there is no {request.scope['path'][:80]} here; /docs lists what there is"
        elif error.status_code == 400:
            said = "the body is not JSON"
        else:
            said = str(error.detail)
        return problem(error.status_code, said, request.state.request_id, dict(error.headers or {}))

    @fastapi.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return problem(400, "the body is not JSON", request.state.request_id)
        where = ".".join(str(part)[:40] for part in first["loc"] if part not in ("body", "query", "path"))
        said = str(first["msg"]).removeprefix("Value error, ")
        return problem(422, f"{where or 'the body'}: {said}", request.state.request_id)


async def _disconnected(request: Request) -> None:
    """Return when the client goes away. The body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _log_outcome(request: Request, reply: Reply) -> None:
    """What the access log says of an answer."""
    episode = reply.metadata.episode
    request.state.logged = {
        "outcome": episode.outcome,
        "proven": reply.proven,
        "turns": episode.turns,
        "queued_seconds": episode.queued_seconds,
    }
