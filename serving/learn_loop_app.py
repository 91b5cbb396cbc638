"""The HTTP interface of learn loops: start, follow and cancel a loop, and report events of its e-mails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Path
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp

from serving.access import Keys, Origins
from serving.bodies import Problem
from serving.errors import BODY_ERRORS, Rejected, add_error_responses, documented
from serving.learn_loop_runs import Busy, Full, LearnLoopRuns, StartedElsewhere
from serving.metrics import Metrics
from serving.middleware import Doors, Envelope
from serving.security import authentication
from tasks.outreach.events import EventStore, UnknownMessage


class LearnLoopRequest(BaseModel):
    """A loop to start. Missing fields default to the configuration of the service."""

    model_config = ConfigDict(extra="forbid")

    max_steps: int | None = Field(default=None, ge=1, le=1000, description="iterations")
    groups_per_step: int | None = Field(default=None, ge=1, le=1024, description="prospects per iteration")
    rollouts_per_group: int | None = Field(default=None, ge=2, le=256, description="e-mails per prospect and iteration")
    seed: int | None = Field(default=None, ge=0, le=2**31, description="order of prospects and sampling")
    graph_seed: int | None = Field(default=None, ge=0, le=2**31, description="synthetic graph and prospects")
    webhook_url: str | None = Field(
        default=None, max_length=2000, description="URL that receives a notice after every iteration"
    )
    wait: bool = Field(default=False, description="begin after other loops on this graph instead of being refused")


class Started(BaseModel):
    run_id: str
    results_path: str
    url: str


class LoopStatus(BaseModel):
    """State of a loop. `metrics` has the figures of every finished iteration, including iteration 0."""

    run_id: str
    state: Literal["queued", "running", "finished", "failed", "cancelled"]
    iteration: int
    error: str | None
    metrics: list[dict[str, Any]]
    undelivered: list[str]
    """Notices that the receiver of the webhook has not accepted yet."""
    results_path: str


class EmailEvent(BaseModel):
    """An event of an e-mail."""

    model_config = ConfigDict(extra="forbid")

    message_id: str = Field(pattern=r"^[A-Za-z0-9-]{1,64}$")
    event: Literal["opened", "replied", "bounced"]


class Stored(BaseModel):
    new: bool
    """False if this event was known, because it counts once."""


_BODY = (*BODY_ERRORS, 401)
_BUSY: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "another loop works on this graph"},
    429: {"model": Problem, "description": "too many loops wait already"},
}
_ELSEWHERE: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "this loop was started on the command line"}
}
RunId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][\w.-]{0,63}$", description="what POST /learn-loop returned")]


def learn_loop_app(runs: LearnLoopRuns, store: EventStore, *, keys: Keys, origins: Origins) -> ASGIApp:
    """Build the application. It opens `runs` at startup and closes them at shutdown."""

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
        redirect_slashes=False,  # the redirect would name whatever host the request names
    )
    with_key = [Depends(authentication(keys))]

    @fastapi.post("/learn-loop", status_code=202, dependencies=with_key, responses=documented(*_BODY) | _BUSY)
    def start(asked: LearnLoopRequest) -> Started:
        """Start a learn loop in the background."""
        try:
            run_id = runs.submit(asked.model_dump(exclude={"wait"}, exclude_none=True), wait=asked.wait)
        except Busy as busy:
            raise Rejected(409, str(busy)) from None
        except Full as full:
            raise Rejected(429, str(full)) from None
        except ValueError as error:  # BadInput, or a setting that the configuration refuses
            raise Rejected(422, str(error)) from None
        return Started(run_id=run_id, results_path=runs.status(run_id)["results_path"], url=f"/learn-loop/{run_id}")

    def status_of(run_id: str) -> LoopStatus:
        try:
            found = runs.status(run_id)
        except KeyError:
            raise Rejected(404, f"there is no learn loop {run_id}") from None
        return LoopStatus(run_id=run_id, **{name: found[name] for name in LoopStatus.model_fields if name in found})

    @fastapi.get("/learn-loop/{run_id}", dependencies=with_key, responses=documented(401, 403, 404, 421, 422))
    def status(run_id: RunId) -> LoopStatus:
        """Return state, iteration and metrics of a loop."""
        return status_of(run_id)

    @fastapi.post("/learn-loop/{run_id}/cancel", dependencies=with_key, responses=documented(*_BODY, 404) | _ELSEWHERE)
    def cancel(run_id: RunId) -> LoopStatus:
        """Stop a loop. Finished iterations stay; a loop that has ended does not change."""
        status_of(run_id)
        try:
            runs.cancel(run_id)
        except StartedElsewhere as elsewhere:
            raise Rejected(409, str(elsewhere)) from None
        return status_of(run_id)

    @fastapi.post("/feedback", status_code=201, dependencies=with_key, responses=documented(*_BODY, 404))
    def feedback(reported: EmailEvent) -> Stored:
        """Report an event of an e-mail, idempotently. The next iteration uses it."""
        try:
            return Stored(new=store.record(reported.message_id, reported.event))
        except UnknownMessage as error:
            raise Rejected(404, str(error)) from None

    @fastapi.get("/health", responses=documented(421))
    def health() -> dict[str, str]:
        """Return whether the service runs. Needs no key."""
        return {"status": "healthy"}

    add_error_responses(fastapi)
    return Envelope(Doors(fastapi, origins), Metrics())
