"""The HTTP face of the service: `POST /invoke` as clients expect it, and who answers.

ZenML's own `/invoke` wraps the pipeline's outputs in an envelope and stays HTTP 200 when a step fails. This one puts the
answer at the top level, beside the envelope's keys, and uses HTTP's status codes.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from zenml.deployers.server.app import BaseDeploymentAppRunner
from zenml.steps.step_context import get_or_create_run_context

from environment.errors import BadInput
from serving.answer import Answer, Question
from serving.service import AnswerService

MAX_BODY_BYTES = 256 * 1024
DRAIN_BYTES = 16 * 1024 * 1024
MAX_PARALLEL_INVOCATIONS = 8
PAGE = Path(__file__).with_name("page.html")

logger = logging.getLogger(__name__)


class Rejected(Exception):
    """A request that cannot be answered, the HTTP status and the line that tells its sender why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Invocation(BaseModel):
    """The body of `POST /invoke`, ZenML's options included."""

    parameters: Question
    run_name: str | None = None
    skip_artifact_materialization: bool = False


def parse_invocation(body: bytes) -> Invocation:
    """The request in `body`, every value checked that can be without the database. Raises `Rejected`."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Rejected(400, f"the body is not JSON ({str(error)[:80]})") from error
    if not isinstance(content, dict):
        raise Rejected(400, 'the body must be an object with "parameters": question, inbox_address, query_date')
    try:
        return Invocation.model_validate(content)
    except ValidationError as error:
        raise Rejected(422, _first_problem(error)) from error


def invoke_endpoint(app_runner: BaseDeploymentAppRunner) -> Callable[[Request], Awaitable[JSONResponse]]:
    """ZenML builds the handler of `POST /invoke` from this."""
    request_model, _ = app_runner.service.get_pipeline_invoke_models()
    executor = ThreadPoolExecutor(max_workers=MAX_PARALLEL_INVOCATIONS, thread_name_prefix="invoke")

    async def invoke(request: Request) -> JSONResponse:
        try:
            invocation = parse_invocation(await request.body())
            # A thread pool of its own: invocations that wait for one another must not keep /health waiting.
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            run = partial(context.run, run_invocation, app_runner, request_model, invocation)
            return JSONResponse(await loop.run_in_executor(executor, run))
        except Rejected as rejected:
            return JSONResponse({"success": False, "error": str(rejected)}, status_code=rejected.status)

    return invoke


def run_invocation(
    app_runner: BaseDeploymentAppRunner, request_model: type[BaseModel], invocation: Invocation
) -> dict[str, Any]:
    """Runs the deployed pipeline once and flattens its result. Raises `Rejected`."""
    service = loaded_service()
    try:
        service.mailbox(invocation.parameters)
    except BadInput as error:
        raise Rejected(404, f"parameters.inbox_address: {one_line(error)}") from error
    response = app_runner.service.execute_pipeline(request_model.model_validate(invocation.model_dump()))
    envelope = response.model_dump(mode="json", exclude={"success", "outputs", "error"})
    run_name = envelope["metadata"]["run_name"]
    answer = next(iter((response.outputs or {}).values()), None)
    if not response.success or answer is None:
        # The cause stays in the service's log: it may quote mail or paths.
        raise Rejected(500, f"the agent failed on this question; see the service's log for run {run_name}")
    answer = Answer.model_validate(answer)
    episode = answer.model_dump(include={"outcome", "turns", "seconds"})
    top_level = answer.model_dump(include={"question", "answer", "source_ids", "success"})
    envelope["metadata"] |= {"episode": episode, "model": service.model.model_dump(mode="json")}
    return top_level | envelope


def health() -> JSONResponse:
    """`GET /health`: 200 while the model answers, 503 when it does not."""
    service = loaded_service()
    healthy = service.is_healthy()
    status = "healthy" if healthy else "the model's server does not answer"
    return JSONResponse({"status": status, "load_id": service.model.load_id}, status_code=200 if healthy else 503)


def model_info() -> JSONResponse:
    """`GET /model`: which checkpoint answers, and when it was loaded."""
    return JSONResponse(loaded_service().model.model_dump(mode="json"))


def page() -> FileResponse:
    """`GET /`: a form to ask a question with."""
    return FileResponse(PAGE, media_type="text/html")


def loaded_service() -> AnswerService:
    """What the pipeline's init hook loaded into this process. Raises `RuntimeError` outside of a running service."""
    service = get_or_create_run_context().state
    if not isinstance(service, AnswerService):
        raise RuntimeError("no model is loaded: the pipeline's init hook did not run")
    return service


class BodyLimit:
    """ASGI middleware that answers 413 to bodies above `MAX_BODY_BYTES` before anything parses them."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        body, size, more = bytearray(), 0, True
        while more and size <= DRAIN_BYTES:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            chunk = message.get("body", b"")
            size += len(chunk)
            # Beyond the limit the rest is read but not kept: a client that is still sending would not see the response.
            if size <= MAX_BODY_BYTES:
                body += chunk
            more = message.get("more_body", False)
        if size > MAX_BODY_BYTES:
            problem = {"success": False, "error": f"the body has more than {MAX_BODY_BYTES:,} bytes"}
            await JSONResponse(problem, status_code=413)(scope, receive, send)
            return
        pending: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self.app(scope, replay, send)


def one_line(error: object) -> str:
    """The text of an error as one bounded line."""
    return " ".join(str(error).split())[:300]


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part)[:40] for part in first["loc"])
    return f"{where}: {one_line(first['msg']).removeprefix('Value error, ')}"
