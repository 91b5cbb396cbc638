"""Routes that clients of OpenAI's chat completions know, so that any of them can ask a mailbox."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import ValidationError

from serving.access import Caller
from serving.admission import Ticket
from serving.answering import MailAnswering
from serving.bodies import MAX_INBOXES, Question, Reply, first_problem, today
from serving.chat import GAVE_UP, MODEL, ChatProblem, ChatRequest, citations, cited, inbox_of, unlinked
from serving.clients import answer_at_once, events_of
from serving.errors import BODY_ERRORS, QUESTION_ERRORS, Rejected, documented, error_line
from serving.service import AskedQuestion


def add_routes(fastapi: FastAPI, answering: MailAnswering, authenticated: Callable[..., Awaitable[Caller]]) -> None:
    """Add `/v1/models` and `/v1/chat/completions`."""
    asking = Annotated[Caller, Depends(authenticated)]

    @fastapi.get("/v1/models", responses=documented(401, 403, 421, body=ChatProblem), tags=["chat"])
    def models(caller: asking) -> dict[str, Any]:
        """List the inboxes that this key may ask as models, those with the most mail first."""
        inboxes = caller.allowed(answering.service.inboxes())[:MAX_INBOXES]
        names = [MODEL, *inboxes] if caller.inboxes is not None and len(caller.inboxes) == 1 else inboxes
        created = int(answering.service.model.loaded_at.timestamp())
        listed = [{"id": name, "object": "model", "created": created, "owned_by": "mail"} for name in names]
        return {"object": "list", "data": listed}

    async def queued(body: ChatRequest, caller: asking) -> AsyncIterator[tuple[AskedQuestion, Ticket]]:
        """Refuse what can be refused with a status, before a stream begins."""
        body.require_supported()
        try:
            question = Question(
                question=body.question(), inbox_address=inbox_of(body.model, caller), query_date=today()
            )
        except ValidationError as error:
            field, said = first_problem(error)
            raise Rejected(422, f"{'model' if field == 'inbox_address' else 'messages'}: {said}") from None
        asked = answering.accepted(caller, question, "model")
        with answering.place(caller) as ticket:
            yield asked, ticket

    @fastapi.post(
        "/v1/chat/completions",
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "the answer, with stream as chunks"},
            **documented(*BODY_ERRORS, *QUESTION_ERRORS, body=ChatProblem),
        },
        tags=["chat"],
        response_model=None,
    )
    async def complete(
        request: Request,
        body: ChatRequest,
        caller: asking,
        place: Annotated[tuple[AskedQuestion, Ticket], Depends(queued)],
    ) -> Response:
        """Answer the last question of a conversation about one inbox, with citations in the text and as values."""
        asked, ticket = place
        made = {"id": f"chatcmpl-{request.state.request_id}", "created": int(time.time()), "model": body.model}
        if not body.stream:
            reply = await answer_at_once(request, answering, ticket, asked, None, caller)
            message = {"role": "assistant", "content": unlinked((reply.answer or GAVE_UP) + cited(reply))}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = {**made, "object": "chat.completion", "choices": [choice], "citations": citations(reply)}
            return JSONResponse(whole)
        chunks = _chunks(request, answering, ticket, asked, caller, {**made, "object": "chat.completion.chunk"})
        return StreamingResponse(chunks, media_type="text/event-stream")


async def _chunks(
    request: Request,
    answering: MailAnswering,
    ticket: Ticket,
    asked: AskedQuestion,
    caller: Caller,
    made: dict[str, Any],
) -> AsyncIterator[str]:
    """Yield the answer as it is written, then the citations."""

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        return _event({**made, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})

    written = ""
    try:
        yield chunk({"role": "assistant", "content": ""})
        async for event in events_of(request, answering, ticket, asked, None, caller):
            if isinstance(event, Reply):
                whole = event.answer or GAVE_UP
                # What was written in a reply that turned out not to be the answer cannot be taken back.
                rest = whole[len(written) :] if whole.startswith(written) else f"\n\n{whole}"
                yield chunk({"content": unlinked(rest + cited(event), written)})
                yield chunk({}, "stop", citations=citations(event))
            elif event.event == "token":
                yield chunk({"content": unlinked(event.data["text"], written)})
                written += event.data["text"]
    except Rejected as rejected:
        yield _event({"error": {"message": error_line(rejected), "code": rejected.status}})
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"  # escaped: clients such as httpx's `iter_lines` split lines at U+2028, too
