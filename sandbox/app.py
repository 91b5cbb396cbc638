"""The sandbox's HTTP service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Self, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandbox.checks import Check, Suite, Verdict, run_checks, run_suite
from sandbox.errors import NoIsolation, NotStarted, Starved, Unusable, WorkspaceLost
from sandbox.settings import SandboxSettings
from sandbox.snapshots import SnapshotCache
from sandbox.workspace import Changes, Image, Observation, Runner, Workspace

logger = logging.getLogger(__name__)
RETRY_AFTER = {"Retry-After": "1"}
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
            await asyncio.wait_for(self._free.acquire(), self._settings.wait_seconds)
        except TimeoutError:
            raise HTTPException(503, "all workspaces are in use", RETRY_AFTER) from None
        finally:
            self.waiting -= 1
        self.taken += 1

    def leave(self) -> None:
        self.taken -= 1
        self._free.release()


def create_app(settings: SandboxSettings, runner: Runner) -> FastAPI:
    """Build the service on a runner whose isolation has been checked."""
    places = _Places(settings)
    snapshots = SnapshotCache(total_bytes=settings.cache_bytes, repository_bytes=settings.repository_bytes)
    workspaces: dict[str, _Open] = {}
    threads = ThreadPoolExecutor(2 * settings.capacity + 8, thread_name_prefix="workspace")

    async def in_thread(function: Callable[[], Result]) -> Result:
        # Must not be cancelled half-way, which would leave a workspace open.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(threads, function))

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
        try:
            workspace = await in_thread(lambda: runner.open(files, creation.image))
        except BaseException:
            places.leave()
            raise
        id = secrets.token_urlsafe(12)
        workspaces[id] = _Open(workspace)
        return {"id": id}

    @app.post("/workspaces/{id}/cells")
    async def execute(id: str, cell: Cell) -> Observation:
        found = opened(id)
        async with found.lock:
            return await in_thread(lambda: found.workspace.exec(cell.code))

    @app.get("/workspaces/{id}/files/{path:path}")
    async def read(id: str, path: str) -> Content:
        found = opened(id)
        async with found.lock:
            return Content(content=await in_thread(lambda: found.workspace.read_file(path)))

    @app.put("/workspaces/{id}/files/{path:path}", status_code=204)
    async def write(id: str, path: str, body: Content) -> Response:
        found = opened(id)
        async with found.lock:
            await in_thread(lambda: found.workspace.write_files({path: body.content}))
        return Response(status_code=204)

    @app.get("/workspaces/{id}/changes")
    async def changes(id: str) -> Changes:
        found = opened(id)
        async with found.lock:
            return await in_thread(found.workspace.changes)

    @app.delete("/workspaces/{id}", status_code=204)
    async def delete(id: str) -> Response:
        opened(id)
        await destroy(id)
        return Response(status_code=204)

    @app.post("/tests")
    async def test(tests: Tests) -> list[Verdict]:
        files = files_of(tests.snapshot)
        await places.take()
        try:
            return await in_thread(lambda: run_checks(runner, files, tests.patch, tests.checks))
        finally:
            places.leave()

    @app.post("/suites")
    async def run_tests_of_image(run: SuiteRun) -> list[Verdict]:
        await places.take()
        try:
            seconds = settings.test_seconds
            return await in_thread(lambda: run_suite(runner, run.image, run.patch, run.suite, seconds=seconds))
        finally:
            places.leave()

    return app
