"""The HTTP interface of learn loops: start one, follow it, cancel it, and report what happened to its e-mails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from serving.access import Keys, Origins
from serving.answer import Problem
from serving.errors import problem
from serving.learn_loop_runs import Busy, LearnLoopRuns
from serving.metrics import Metrics
from serving.middleware import Doors, Envelope
from tasks.outreach.events import EventStore, UnknownMessage


class LearnLoopRequest(BaseModel):
    """A loop to start. What is left out is as the service is configured."""

    model_config = ConfigDict(extra="forbid")

    max_steps: int | None = Field(default=None, ge=1, le=1000, description="iterations")
    groups_per_step: int | None = Field(default=None, ge=1, le=1024, description="prospects per iteration")
    rollouts_per_group: int | None = Field(default=None, ge=2, le=256, description="e-mails per prospect and iteration")
    seed: int | None = Field(default=None, ge=0, le=2**31, description="order of prospects and sampling")
    graph_seed: int | None = Field(default=None, ge=0, le=2**31, description="synthetic graph and prospects")
    webhook_url: str | None = Field(default=None, max_length=2000, description="URL that is told of every iteration")
    wait: bool = Field(default=False, description="begin after other loops on this graph instead of being refused")


class Started(BaseModel):
    run_id: str
    results_path: str
    url: str


class LoopStatus(BaseModel):
    """How far a loop is. `metrics` has the figures of every finished iteration, iteration 0 included."""

    run_id: str
    state: Literal["queued", "running", "finished", "failed", "cancelled"]
    iteration: int
    error: str | None
    metrics: list[dict[str, Any]]
    undelivered: list[str]
    """Notices that the webhook's receiver has not accepted yet."""
    results_path: str


class EmailEvent(BaseModel):
    """What happened to an e-mail."""

    model_config = ConfigDict(extra="forbid")

    message_id: str = Field(pattern=r"^[A-Za-z0-9-]{1,64}$")
    event: Literal["opened", "replied", "bounced"]


class Stored(BaseModel):
    new: bool
    """False when this event was known already: it counts once."""


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_STATUSES = {
    400: "the body is not JSON",
    401: "a key is needed, or this one is wrong",
    403: "the request comes from a page of another origin",
    404: "there is nothing of that name",
    408: "the body came too slowly",
    409: "another loop works on this graph",
    413: "the body is too large",
    415: "the body is not application/json",
    421: "the service is not known by this name",
    422: "a value is missing, unknown or out of bounds",
}
_BODY = (400, 401, 403, 408, 413, 415, 421, 422)
RunId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][\w.-]{0,63}$", description="what POST /learn-loop returned")]


def _documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": _STATUSES[status]} for status in sorted(statuses)}


def learn_loop_app(runs: LearnLoopRuns, store: EventStore, *, keys: Keys, origins: Origins) -> ASGIApp:
    """The application. `runs` are opened when it starts and closed when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(runs.open)
        yield
        await asyncio.to_thread(runs.close)

    fastapi = FastAPIOffline(
        title="Learn loops",
        description="An outreach agent that writes e-mails from a knowledge graph and learns from replies.",
        version="1",
        lifespan=lifespan,
    )
    bearer = HTTPBearer(auto_error=False, description="a key of this service; not needed where none is set")

    def authenticated(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if keys.caller(credentials.credentials if credentials else None) is None:
            said = "this key is not known" if credentials else "a key is needed: send Authorization: Bearer KEY"
            raise Refused(401, said)

    with_key = [Depends(authenticated)]

    @fastapi.post("/learn-loop", status_code=202, dependencies=with_key, responses=_documented(*_BODY, 409))
    def start(asked: LearnLoopRequest) -> Started:
        """Start a learn loop in the background."""
        try:
            run_id = runs.submit(asked.model_dump(exclude={"wait"}, exclude_none=True), wait=asked.wait)
        except Busy as busy:
            raise Refused(409, str(busy)) from None
        except ValueError as error:  # BadInput, or a setting that the configuration refuses
            raise Refused(422, str(error)) from None
        return Started(run_id=run_id, results_path=runs.status(run_id)["results_path"], url=f"/learn-loop/{run_id}")

    def status_of(run_id: str) -> LoopStatus:
        try:
            found = runs.status(run_id)
        except KeyError:
            raise Refused(404, f"there is no learn loop {run_id}") from None
        return LoopStatus(run_id=run_id, **{name: found[name] for name in LoopStatus.model_fields if name in found})

    @fastapi.get("/learn-loop/{run_id}", dependencies=with_key, responses=_documented(401, 403, 404, 421, 422))
    def status(run_id: RunId) -> LoopStatus:
        """State, iteration and metrics of a loop."""
        return status_of(run_id)

    @fastapi.post("/learn-loop/{run_id}/cancel", dependencies=with_key, responses=_documented(*_BODY, 404))
    def cancel(run_id: RunId) -> LoopStatus:
        """Stop a loop. What it has finished stays; a loop that has ended is left as it is."""
        status_of(run_id)
        runs.cancel(run_id)
        return status_of(run_id)

    @fastapi.post("/feedback", status_code=201, dependencies=with_key, responses=_documented(*_BODY, 404))
    def feedback(reported: EmailEvent) -> Stored:
        """Report an event of an e-mail. Reporting it again changes nothing. It is used from the next iteration on."""
        try:
            return Stored(new=store.record(reported.message_id, reported.event))
        except UnknownMessage as error:
            raise Refused(404, str(error)) from None

    @fastapi.get("/health", responses=_documented(421))
    def health() -> dict[str, str]:
        """Needs no key."""
        return {"status": "healthy"}

    @fastapi.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
        return problem(error.status, str(error), request.state.request_id, headers)

    @fastapi.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        said = "the body is not JSON" if error.status_code == 400 else f"{error.detail}: /docs lists what there is"
        return problem(error.status_code, said, request.state.request_id, dict(error.headers or {}))

    @fastapi.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return problem(400, "the body is not JSON", request.state.request_id)
        where = ".".join(str(part)[:40] for part in first["loc"] if part not in ("body", "query", "path"))
        return problem(422, f"{where or 'the body'}: {first['msg']}", request.state.request_id)

    return Envelope(Doors(fastapi, origins), Metrics())
