"""The route of the Model Context Protocol, behind the same doors and keys as every other."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

from serving.access import Caller
from serving.mail_tools import MailToolServer


class _Passed(Response):
    """A response that the protocol's server sends itself."""

    def __init__(self, server: MailToolServer) -> None:
        super().__init__()
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.handle(scope, receive, send)


def add_routes(fastapi: FastAPI, server: MailToolServer, authenticated: Callable[..., Awaitable[Caller]]) -> None:
    """Add `/mcp`."""
    asking = Annotated[Caller, Depends(authenticated)]

    # Without sessions, GET would be a stream that never ends and carries nothing, and DELETE has nothing to end.
    @fastapi.post("/mcp", include_in_schema=False)
    async def mcp(request: Request, caller: asking) -> Response:
        """Answer one message of the Model Context Protocol (streamable HTTP, without sessions)."""
        request.state.mail_of = caller
        return _Passed(server)
