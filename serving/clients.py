"""A client that waits for its answer: at once or as events, for as long as it is there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.sse import ServerSentEvent

from serving.access import Caller
from serving.admission import Ticket
from serving.answering import Answering, Given, MailAnswering
from serving.bodies import Reply, TaskReply
from serving.errors import Rejected
from serving.events import EventQueue
from serving.service import AskedQuestion

WAITING_NOTE_SECONDS = 2.0


async def answer_at_once(
    request: Request,
    answering: Answering[Given],
    ticket: Ticket,
    asked: Any,
    timeout: float | None,
    caller: Caller,
) -> Given:
    """Answer a question unless the client goes away. Raises `Rejected`."""
    answer = asyncio.ensure_future(answering.answer(ticket, asked, timeout, caller, request.state.request_id))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answer
            raise Rejected(408, "the client went away")  # nobody reads this
        reply = await answer
    finally:
        gone.cancel()
        answer.cancel()
    _log_outcome(request, reply)
    return reply


async def events_of(
    request: Request,
    answering: MailAnswering,
    ticket: Ticket,
    asked: AskedQuestion,
    timeout: float | None,
    caller: Caller,
) -> AsyncIterator[ServerSentEvent | Reply]:
    """Yield what happens while a question is answered, and the reply as the last. Raises `Rejected`."""
    events = EventQueue(asked.mailbox)
    answer = asyncio.ensure_future(
        answering.answer(ticket, asked, timeout, caller, request.state.request_id, watcher=events)
    )
    taking: asyncio.Future[ServerSentEvent] | None = None
    sent = 0
    try:
        while not answer.done():
            taking = taking or asyncio.ensure_future(events.get())
            pending: set[asyncio.Future[Any]] = {answer, taking}
            await asyncio.wait(pending, timeout=WAITING_NOTE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                yield taking.result()
                taking = None
            elif (position := answering.admission.position(ticket)) and position != sent:
                sent = position
                yield ServerSentEvent(event="waiting", data={"position": position})
        if taking is not None and not taking.cancel():  # it was done already
            yield taking.result()
        while event := events.get_nowait():
            yield event
        reply = await answer
        _log_outcome(request, reply)
        yield reply
    finally:
        answer.cancel()
        if taking is not None:
            taking.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client goes away. The body has been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _log_outcome(request: Request, reply: Reply | TaskReply) -> None:
    """Add the outcome of an answer to the access log."""
    episode = reply.metadata.episode
    request.state.logged = {
        "outcome": episode.outcome,
        **({"proven": reply.proven} if isinstance(reply, Reply) else {}),
        "turns": episode.turns,
        "queued_seconds": episode.queued_seconds,
    }
