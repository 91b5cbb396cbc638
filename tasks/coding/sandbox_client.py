"""Client of the sandbox service."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from tasks.coding.errors import SandboxUnavailable, SnapshotGone, WorkspaceGone
from tasks.coding.scenarios import CodingScenario
from training.errors import BadInput

REQUEST_SECONDS = 120.0
IMAGE_SECONDS = 3600.0
"""Timeout of a request that may download an image or run code: the service has limits of its own."""
SANDBOX_PATIENCE = 300.0
"""Seconds to wait for a service that is busy or restarting."""
BEGINS_WITH_FILES = ("/workspaces", "/tests")
RUNS_CODE = ("/cells", "/tests", "/suites")


class Refused(BadInput):
    """The service cannot do what a request asks for, whenever it is asked."""


class SandboxClient:
    """A connection to the service, for one event loop. Closes with `async with`."""

    def __init__(self, base_url: str, *, patience: float = SANDBOX_PATIENCE) -> None:
        self.base_url, self._patience = base_url, patience
        self._http = httpx.AsyncClient(
            base_url=base_url, timeout=REQUEST_SECONDS, trust_env=False, limits=httpx.Limits(max_connections=None)
        )

    async def __aenter__(self) -> SandboxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def open(self, scenario: CodingScenario) -> str:
        """Open a new workspace with the scenario's code. Return its id."""
        return str((await self._begin("/workspaces", scenario, {}))["id"])

    async def execute(self, workspace: str, code: str) -> dict[str, Any]:
        """Run a cell; see `sandbox.workspace.Observation`. Raises WorkspaceGone if the workspace has ended or ends."""
        try:
            observation: dict[str, Any] = await self._ask("POST", f"/workspaces/{workspace}/cells", {"code": code})
        except Refused:  # a policy's mistake, which must not end the run
            return {"output": "(the cell was not run: it is too long or no text)", "ended": None, "restarted": False}
        if observation["starved"]:  # on another machine the episode would have gone on differently
            raise SandboxUnavailable(f"{self.base_url}: it is too busy: {observation['ended']}")
        return observation

    async def changes(self, workspace: str) -> dict[str, Any]:
        """Return the changes to the files. Changes that are too large count as no patch."""
        try:
            changes: dict[str, Any] = await self._ask("GET", f"/workspaces/{workspace}/changes", None, retry=True)
        except Refused:
            return {"changed": {}, "deleted": []}
        return changes

    async def destroy(self, workspace: str) -> None:
        answer = await self._send("DELETE", f"/workspaces/{workspace}", None)
        if answer.status_code not in (204, 404, 410):
            raise SandboxUnavailable(f"{self.base_url}: {_detail(answer)}")

    async def test(self, scenario: CodingScenario, patch: dict[str, Any]) -> list[bool]:
        """Run the hidden tests on the patched code in a fresh workspace, and return which pass."""
        body = {**scenario.tests, "patch": patch}
        verdicts = await self._begin("/suites" if "suite" in body else "/tests", scenario, body)
        return [verdict["passed"] for verdict in verdicts]

    async def _begin(self, path: str, scenario: CodingScenario, body: dict[str, Any]) -> Any:
        """Ask for something in a new workspace. Files are sent before, and again to a service that was restarted meanwhile."""
        if "files" not in scenario.workspace:
            return await self._ask("POST", path, {**scenario.workspace, **body}, retry=True)
        for last in (False, False, True):
            kept = await self._ask("POST", "/snapshots", scenario.workspace, retry=True)
            try:
                return await self._ask("POST", path, {"snapshot": kept["snapshot"], **body}, retry=True)
            except SnapshotGone:
                if last:
                    raise

    async def _ask(self, method: str, path: str, body: Any, *, retry: bool = False) -> Any:
        """With `retry`, wait for a service that is busy or restarting: nothing is lost by asking again."""
        until = time.monotonic() + self._patience
        while True:
            try:
                answer = await self._send(method, path, body)
            except SandboxUnavailable:
                if not retry or time.monotonic() > until:
                    raise
                await asyncio.sleep(0.5)
                continue
            if answer.status_code == 503 and retry and time.monotonic() < until:
                await asyncio.sleep(_pause(answer))
                continue
            if answer.status_code == 422:
                raise Refused(f"the sandbox refuses a repository: {_detail(answer)}")
            return self._content(answer)

    async def _send(self, method: str, path: str, body: Any) -> httpx.Response:
        try:
            patient = path.endswith(RUNS_CODE) or (body and "image" in body)
            seconds = httpx.Timeout(IMAGE_SECONDS if patient else REQUEST_SECONDS, connect=REQUEST_SECONDS)
            return await self._http.request(method, path, json=body, timeout=seconds)
        except httpx.HTTPError as error:
            raise SandboxUnavailable(f"{self.base_url}: {type(error).__name__} {error}".strip()) from None

    def _content(self, answer: httpx.Response) -> Any:
        if answer.is_error:
            kind, path = SandboxUnavailable, answer.request.url.path
            if answer.status_code in (404, 410) and "/workspaces/" in path:
                kind = WorkspaceGone
            elif answer.status_code == 404 and path.endswith(BEGINS_WITH_FILES):
                kind = SnapshotGone
            raise kind(f"{self.base_url}: HTTP {answer.status_code}: {_detail(answer)}")
        return answer.json()


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("detail"))
    except (ValueError, AttributeError):
        return answer.text[:200]


def _pause(answer: httpx.Response) -> float:
    """Return the seconds after which to ask again."""
    try:
        return max(0.1, float(answer.headers.get("Retry-After", 1)))
    except ValueError:  # a date, which a proxy may send
        return 1.0


def require_sandbox(base_url: str, *, images: bool = False, workspaces: int = 1) -> str:
    """Ask for the service's health; returns it in words.

    Raises:
        BadInput: it cannot be used, has no free workspace or fewer than `workspaces` in all, or has no `images` although
            they are needed.
    """
    try:
        answer = httpx.get(f"{base_url}/health", timeout=10.0, trust_env=False)
        health = answer.raise_for_status().json()
        capacity, in_use, waiting = (int(health[name]) for name in ("capacity", "in_use", "waiting"))
        isolation, has_images = str(health["isolation"]), bool(health["images"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        why = type(error).__name__
        raise BadInput(
            f"sandbox_url={base_url}: no sandbox service answers there ({why}); start one: python -m sandbox"
        ) from None
    if waiting or in_use >= capacity:
        raise BadInput(
            f"sandbox_url={base_url}: no capacity, {in_use} of {capacity} workspaces are in use and {waiting} requests are "
            "waiting; wait, or start a service of your own"
        )
    if capacity < workspaces:
        raise BadInput(
            f"sandbox_url={base_url}: {capacity} workspaces are too few for max_concurrent={workspaces}; start the service "
            f"with --set capacity={workspaces} or lower max_concurrent"
        )
    if images and not has_images:
        raise BadInput(
            f"sandbox_url={base_url}: these bugs come as container images, which the {isolation} runner cannot open; "
            "start the service with --set runner=docker or --set runner=kubernetes"
        )
    return f"{base_url}, {capacity} workspaces, {isolation}"
