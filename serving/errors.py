"""Errors of the HTTP interface: how a route raises one, what the response holds, and how OpenAPI documents it."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Scope

from serving.bodies import Problem

_MAX_CHARS = 400
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
BODY_ERRORS = (400, 403, 408, 413, 415, 421, 422)
"""Statuses of every route that takes a body."""
QUESTION_ERRORS = (401, 404, 429, 500, 503, 504)
"""Statuses of every route that waits for an answer, in addition to those of its body."""


class Rejected(Exception):
    """A request that is not answered: the HTTP status, one line that says why, and further headers."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def error_line(error: object) -> str:
    """Return the text of an error as one line of at most 400 characters that can be encoded."""
    return " ".join(str(error).split()).encode("utf-8", "replace").decode("utf-8")[:_MAX_CHARS]


def problem(status: int, error: str, scope: Scope, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the response of the request in `scope`, which is not answered. OpenAI's clients show what they know only."""
    said: Any = error_line(error)
    if scope["path"].startswith("/v1/"):
        said = {"message": said, "type": "invalid_request_error" if status < 500 else "server_error", "code": status}
    content = {"success": False, "error": said, "request_id": scope["state"]["request_id"]}
    return JSONResponse(content, status_code=status, headers=headers)


def documented(*statuses: int, body: type[BaseModel] = Problem) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI documentation of these error statuses, whose responses have this body."""
    return {status: {"model": body, "description": _STATUSES[status]} for status in sorted(statuses)}


def documented_next_to_events(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the same for a route whose successful response is a stream of events; its errors are JSON."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}}
    return {status: {"content": content, "description": _STATUSES[status]} for status in sorted(statuses)}


def add_error_responses(fastapi: FastAPI) -> None:
    """Give every error the same body: one line and the request id."""

    @fastapi.exception_handler(Rejected)
    async def rejected(request: Request, error: Rejected) -> JSONResponse:
        return problem(error.status, str(error), request.scope, error.headers)

    @fastapi.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            said = f"there is no {request.scope['path'][:80]} here; /docs lists what there is"
        elif error.status_code == 400:
            said = "the body is not JSON"
        else:
            said = str(error.detail)
        return problem(error.status_code, said, request.scope, dict(error.headers or {}))

    @fastapi.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return problem(400, "the body is not JSON", request.scope)
        where = ".".join(str(part)[:40] for part in first["loc"] if part not in ("body", "query", "path"))
        said = str(first["msg"]).removeprefix("Value error, ")
        return problem(422, f"{where or 'the body'}: {said}", request.scope)
