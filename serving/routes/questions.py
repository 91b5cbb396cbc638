"""Routes that answer questions: at once, as events, and in the background."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from serving.access import Caller
from serving.admission import Ticket
from serving.answering import MailAnswering
from serving.bodies import Invocation, Reply, StoredAnswer, Submission, Submitted, TaskInvocation, TaskReply
from serving.clients import answer_at_once, events_of
from serving.errors import BODY_ERRORS, QUESTION_ERRORS, Rejected, documented, documented_next_to_events, error_line
from serving.service import AskedQuestion
from serving.task_service import TaskAnswering


def add_routes(fastapi: FastAPI, answering: MailAnswering, authenticated: Callable[..., Awaitable[Caller]]) -> None:
    """Add `/invoke`, `/stream`, `/submit` and `/answers/{answer_id}`."""
    asking = Annotated[Caller, Depends(authenticated)]

    @fastapi.post("/invoke", responses=documented(*BODY_ERRORS, *QUESTION_ERRORS), tags=["questions"])
    async def invoke(request: Request, invocation: Invocation, caller: asking) -> Reply:
        """Answer one question about one inbox, as it was on one day."""
        asked = answering.accepted(caller, invocation.parameters, "parameters")
        with answering.place(caller) as ticket:
            return await answer_at_once(request, answering, ticket, asked, invocation.timeout, caller)

    async def queued(invocation: Invocation, caller: asking) -> AsyncIterator[tuple[AskedQuestion, Ticket]]:
        """Refuse what can be refused with a status, before the stream begins."""
        asked = answering.accepted(caller, invocation.parameters, "parameters")
        with answering.place(caller) as ticket:
            yield asked, ticket

    @fastapi.post(
        "/stream",
        response_class=EventSourceResponse,
        responses=documented_next_to_events(*BODY_ERRORS, *QUESTION_ERRORS),
        tags=["questions"],
    )
    async def stream(
        request: Request,
        invocation: Invocation,
        caller: asking,
        place: Annotated[tuple[AskedQuestion, Ticket], Depends(queued)],
    ) -> AsyncIterator[ServerSentEvent]:
        """Answer one question and send what happens as server-sent events.

        `waiting` has the position in the queue, `step` a search or a read, `source` a mail that was read, `token` the
        next piece of the answer. The last event is `answer`, with the data of `/invoke`, or `error`, with the data of
        an error response.
        """
        asked, ticket = place
        try:
            async for event in events_of(request, answering, ticket, asked, invocation.timeout, caller):
                if isinstance(event, Reply):
                    event = ServerSentEvent(event="answer", data=event.model_dump(mode="json"))
                yield event
        except Rejected as rejected:
            data = {
                "success": False,
                "error": error_line(rejected),
                "request_id": request.state.request_id,
                "status": rejected.status,
            }
            yield ServerSentEvent(event="error", data=data)

    @fastapi.post(
        "/submit", status_code=202, responses=documented(*BODY_ERRORS, 401, 404, 429, 503), tags=["questions"]
    )
    async def submit(submission: Submission, caller: asking) -> Submitted:
        """Answer one or several questions in the background; `GET /answers/{id}` has the answers."""
        questions = [
            answering.accepted(caller, question, "parameters" if submission.parameters else f"batch.{place}")
            for place, question in enumerate(submission.questions())
        ]
        ids = [result.id for result in answering.submit(caller, questions, submission.timeout)]
        return Submitted(ids=ids, urls=[f"/answers/{id}" for id in ids])

    @fastapi.get("/answers/{answer_id}", responses=documented(401, 403, 404, 421, 422), tags=["questions"])
    async def stored_answer(answer_id: str, caller: asking) -> StoredAnswer:
        """Return the answer of a submitted question to the key that submitted it."""
        result = answering.results.get(caller.name, answer_id)
        if result is None:
            raise Rejected(
                404, "there is no answer with this id for this key: it was never asked for, or is kept no longer"
            )
        return result.stored()


def add_task_route(fastapi: FastAPI, answering: TaskAnswering, authenticated: Callable[..., Awaitable[Caller]]) -> None:
    """Add `/invoke` for another task than mail."""
    asking = Annotated[Caller, Depends(authenticated)]

    @fastapi.post("/invoke", responses=documented(*BODY_ERRORS, *QUESTION_ERRORS), tags=["questions"])
    async def invoke(request: Request, invocation: TaskInvocation, caller: asking) -> TaskReply:
        """Play one episode on the scenario that the task makes of a question."""
        asked = answering.accepted(invocation.parameters)
        with answering.place(caller) as ticket:
            return await answer_at_once(request, answering, ticket, asked, invocation.timeout, caller)
