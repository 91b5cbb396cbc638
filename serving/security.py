"""Authentication of requests: the dependency that turns the header `Authorization` into a caller."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from serving.access import Caller, Keys
from serving.errors import Rejected

_BEARER = HTTPBearer(auto_error=False, description="a key of this service; not needed where none is set")


def authentication(keys: Keys) -> Callable[..., Awaitable[Caller]]:
    """Return a FastAPI dependency that yields the caller. It raises `Rejected` (401) for a missing or unknown key."""

    async def authenticated(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> Caller:
        caller = keys.caller(credentials.credentials if credentials else None)
        if caller is None:
            said = "this key is not known" if credentials else "a key is needed: send Authorization: Bearer KEY"
            raise Rejected(401, said, {"WWW-Authenticate": "Bearer"})
        request.state.caller = caller.name
        return caller

    return authenticated
