"""The sandbox's HTTP service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Self, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.checks import Check, Opener, Suite, Verdict, run_checks, run_suite
from sandbox.doors import Doors
from sandbox.errors import NoIsolation, NotStarted, Starved, Unusable, WorkspaceLost
from sandbox.settings import SandboxSettings
from sandbox.snapshots import SnapshotCache
from sandbox.workspace import Changes, Image, Observation, Runner, Workspace

logger = logging.getLogger(__name__)
RETRY_AFTER = {"Retry-After": "1"}
SLACK_BYTES = 8 << 20
"""Room in a body beyond its files, and for what JSON escapes."""
Result = TypeVar("Result")


class Snapshot(BaseModel):
    model_config = ConfigDict(extra="forbid")

    files: dict[Annotated[str, Field(min_length=1, max_length=500)], str]


class Creation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    snapshot: str | None = None
    image: Image | None = None

    @model_validator(mode="after")
    def _one_beginning(self) -> Self:
        if (self.snapshot is None) == (self.image is None):
            raise ValueError("a workspace begins with a snapshot or with an image")
        return self


class Cell(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str = Field(max_length=100_000)


class Content(BaseModel):
    model_config = ConfigDict(extra="forbid")

    content: str


class Tests(BaseModel):
    model_config = ConfigDict(extra="forbid")

    snapshot: str
    patch: Changes = Field(default_factory=Changes)
    checks: list[Check] = Field(min_length=1, max_length=1000)


class SuiteRun(BaseModel):
    model_config = ConfigDict(extra="forbid")

    image: Image
    patch: Changes = Field(default_factory=Changes)
    suite: Suite


class _Open:
    """A workspace that belongs to a client."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.created, self.lock = workspace, time.monotonic(), asyncio.Lock()


class _Places:
    """Admission of workspaces: at most `capacity` at a time, then a bounded queue, then 503."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings, self._free = settings, asyncio.Semaphore(settings.capacity)
        self.waiting = self.taken = 0

    async def take(self) -> None:
        if self._free.locked() and self.waiting >= self._settings.max_waiting:
            raise HTTPException(503, "all workspaces are in use and the queue is full", RETRY_AFTER)
        self.waiting += 1
        try:
            async with asyncio.timeout(self._settings.wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise HTTPException(503, "all workspaces are in use", RETRY_AFTER) from None
        finally:
            self.waiting -= 1
        self.taken += 1

    def leave(self) -> None:
        self.taken -= 1
        self._free.release()


class _OfOneRequest:
    """Opens workspaces of a runner for one request, and ends them when its client hangs up."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._lock = runner, threading.Lock()
        self._opened: list[Workspace] = []
        self._cancelled = False

    def open(
        self, files: dict[str, str] | None = None, image: Image | None = None, *, seconds: float | None = None
    ) -> Workspace:
        """Open a workspace; see `Runner.open`. Raises WorkspaceLost after `cancel`."""
        if self._cancelled:
            raise WorkspaceLost("the client has hung up")
        workspace = self._runner.open(files, image, seconds=seconds)
        with self._lock:
            self._opened.append(workspace)
        if self._cancelled:
            workspace.kill()
        return workspace

    def cancel(self) -> None:
        self._cancelled = True
        with self._lock:
            opened = list(self._opened)
        for workspace in opened:
            workspace.kill()


def create_app(settings: SandboxSettings, runner: Runner) -> FastAPI:
    """Build the service on a runner whose isolation has been checked."""
    places = _Places(settings)
    snapshots = SnapshotCache(total_bytes=settings.cache_bytes, repository_bytes=settings.repository_bytes)
    workspaces: dict[str, _Open] = {}
    threads = ThreadPoolExecutor(2 * settings.capacity + 8, thread_name_prefix="workspace")

    unfinished: set[asyncio.Task[Any]] = set()

    async def in_thread(function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(threads, function)

    def started(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work)
        unfinished.add(task)
        task.add_done_callback(unfinished.discard)
        return task

    async def to_the_end(work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work even if the client hangs up: half-way it would leave a workspace open or its lock free."""
        return await asyncio.shield(started(work))

    async def of_workspace(id: str, use: Callable[[Workspace], Result]) -> Result:
        found = opened(id)

        async def used() -> Result:
            async with found.lock:
                return await in_thread(lambda: use(found.workspace))

        return await to_the_end(used())

    async def in_place(run: Callable[[Opener], Result]) -> Result:
        """Run tests in a place of their own. If the client hangs up, they end, and then the place is free."""
        await places.take()
        opener = _OfOneRequest(runner)

        async def tested() -> Result:
            try:
                return await in_thread(lambda: run(opener))
            finally:
                places.leave()

        try:
            return await to_the_end(tested())
        except asyncio.CancelledError:
            threads.submit(opener.cancel)
            raise

    async def destroy(id: str) -> None:
        found = workspaces.pop(id, None)
        if found is not None:
            try:
                # Not under the lock: a cell that still runs ends now, not at its limit.
                await in_thread(found.workspace.kill)
                async with found.lock:
                    await in_thread(found.workspace.close)
            finally:
                places.leave()

    async def end_old_ones() -> None:
        while True:
            await asyncio.sleep(min(5.0, settings.lifetime_seconds))
            now = time.monotonic()
            for id in [id for id, found in workspaces.items() if now - found.created > settings.lifetime_seconds]:
                try:
                    await destroy(id)
                except Exception:  # whatever its engine raises: the others still have to end
                    logger.exception("workspace %s could not be closed", id)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(end_old_ones())
        yield
        watch.cancel()
        try:
            for id in list(workspaces):
                await destroy(id)
        finally:
            runner.close()
            threads.shutdown()

    app = FastAPI(title="Sandbox", lifespan=lifespan)
    app.add_middleware(
        Doors,
        hosts=settings.allowed_hosts,
        snapshot_bytes=2 * settings.repository_bytes + SLACK_BYTES,
        body_bytes=2 * settings.limits.file_bytes + SLACK_BYTES,
    )

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without the input: it may hold what no JSON response can, such as NaN.
        first = error.errors()[0]
        where = ".".join(str(part)[:40] for part in first["loc"] if part not in ("body", "path")) or "the body"
        said = f"{where}: {first['msg']}".encode("utf-8", "replace").decode()
        return JSONResponse({"detail": " ".join(said.split())[:400]}, 422)

    @app.exception_handler(Unusable)
    async def unusable(_: Request, error: Unusable) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(WorkspaceLost)
    async def lost(_: Request, error: WorkspaceLost) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 410)

    @app.exception_handler(NoIsolation)
    @app.exception_handler(NotStarted)
    @app.exception_handler(Starved)
    async def not_now(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, RETRY_AFTER)

    def files_of(snapshot: str) -> dict[str, str]:
        try:
            return snapshots.get(snapshot)
        except KeyError:
            raise HTTPException(404, "no such snapshot: send it again to /snapshots") from None

    def opened(id: str) -> _Open:
        if id not in workspaces:
            raise HTTPException(404, "no such workspace: it was destroyed or its lifetime is over")
        return workspaces[id]

    @app.get("/health")
    async def health() -> dict[str, object]:
        return {
            "status": "ok",
            "isolation": runner.name,
            "images": runner.images,
            "capacity": settings.capacity,
            "in_use": places.taken,
            "waiting": places.waiting,
        }

    @app.post("/snapshots", status_code=201)
    async def keep_snapshot(snapshot: Snapshot) -> dict[str, str]:
        return {"snapshot": snapshots.add(snapshot.files)}

    @app.post("/workspaces", status_code=201)
    async def create(creation: Creation) -> dict[str, str]:
        files = files_of(creation.snapshot) if creation.snapshot is not None else None
        await places.take()
        id = secrets.token_urlsafe(12)

        async def open_it() -> None:
            try:
                workspaces[id] = _Open(await in_thread(lambda: runner.open(files, creation.image)))
            except BaseException:
                places.leave()
                raise

        opening = started(open_it())
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:  # nobody will ever hear of it
            opening.add_done_callback(lambda _: started(destroy(id)))
            raise
        return {"id": id}

    @app.post("/workspaces/{id}/cells")
    async def execute(id: str, cell: Cell) -> Observation:
        return await of_workspace(id, lambda workspace: workspace.exec(cell.code))

    @app.get("/workspaces/{id}/files/{path:path}")
    async def read(id: str, path: str) -> Content:
        return Content(content=await of_workspace(id, lambda workspace: workspace.read_file(path)))

    @app.put("/workspaces/{id}/files/{path:path}", status_code=204)
    async def write(id: str, path: str, body: Content) -> Response:
        await of_workspace(id, lambda workspace: workspace.write_files({path: body.content}))
        return Response(status_code=204)

    @app.get("/workspaces/{id}/changes")
    async def changes(id: str) -> Changes:
        return await of_workspace(id, lambda workspace: workspace.changes())

    @app.delete("/workspaces/{id}", status_code=204)
    async def delete(id: str) -> Response:
        opened(id)
        await to_the_end(destroy(id))
        return Response(status_code=204)

    @app.post("/tests")
    async def test(tests: Tests) -> list[Verdict]:
        files = files_of(tests.snapshot)
        seconds = settings.lifetime_seconds
        return await in_place(lambda opener: run_checks(opener, files, tests.patch, tests.checks, seconds))

    @app.post("/suites")
    async def run_tests_of_image(run: SuiteRun) -> list[Verdict]:
        seconds = settings.test_seconds
        return await in_place(lambda opener: run_suite(opener, run.image, run.patch, run.suite, seconds=seconds))

    return app
