"""Routes that say what can be asked: inboxes and example questions."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, FastAPI, Query

from serving.access import Caller
from serving.answering import MailAnswering
from serving.bodies import ExampleQuery, Examples, Inboxes, InboxQuery
from serving.errors import Rejected, documented


def add_routes(fastapi: FastAPI, answering: MailAnswering, authenticated: Callable[..., Awaitable[Caller]]) -> None:
    """Add `/inboxes` and `/examples`. Plain functions: FastAPI runs them in a thread, off the event loop."""
    asking = Annotated[Caller, Depends(authenticated)]

    @fastapi.get("/inboxes", responses=documented(401, 403, 421, 422), tags=["mail"])
    def inboxes(caller: asking, query: Annotated[InboxQuery, Query()]) -> Inboxes:
        """List the inboxes that this key may ask about."""
        wanted = query.contains.strip().lower()
        found = [inbox for inbox in caller.allowed(answering.service.inboxes()) if wanted in inbox]
        return Inboxes(inboxes=found[: query.limit], total=len(found))

    @fastapi.get("/examples", responses=documented(401, 403, 404, 421, 422), tags=["mail"])
    def examples(caller: asking, query: Annotated[ExampleQuery, Query()]) -> Examples:
        """List questions that an inbox is known to answer; without an inbox, one question to each of a few inboxes."""
        inbox = query.inbox
        if not inbox:
            return Examples(examples=answering.service.first_examples(caller.may_ask))
        if not caller.may_ask(inbox):
            raise Rejected(404, "inbox: unknown inbox: no mail is from or to this address")
        return Examples(examples=answering.service.examples(inbox))
