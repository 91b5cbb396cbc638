"""Middleware: checks of every request before routing, and headers, log and metrics of every response."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.access import Origins
from serving.errors import problem
from serving.log import cause
from serving.metrics import Metrics

MAX_BODY_BYTES = 256 * 1024
DRAIN_BYTES = 16 * 1024 * 1024
BODY_SECONDS = 20.0
"""Time for a body to arrive."""
READ_SECONDS = 60.0
"""A client that reads nothing of its response for this long is gone."""
HEALTH = "/health"
_ONCE = ("host", "content-type", "authorization")
"""Headers of which a proxy in front may take another one than this service does."""
_DOCS = ("/docs", "/redoc")
_STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Swagger UI and ReDoc come with inline scripts and styles; neither loads anything from elsewhere.
_FOR_DOCS = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; font-src 'self' data:; worker-src blob:; base-uri 'none'; frame-ancestors 'none'"
)

logger = logging.getLogger(__name__)


class Envelope:
    """The outermost layer: request id, access log, metrics, security headers, and the response to unexpected errors."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        policy = _FOR_DOCS if scope["path"].startswith(_DOCS) else _STRICT
        started, status = time.monotonic(), 0

        async def send_out(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
                headers["X-Frame-Options"] = "DENY"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Content-Security-Policy"] = policy
                headers.setdefault("Cache-Control", "no-store")
            async with asyncio.timeout(READ_SECONDS):
                await send(message)

        try:
            await self.app(scope, receive, send_out)
        except Exception as error:
            fields = {"request_id": request_id, **cause(error)}
            logger.error("unexpected error", extra={"fields": fields})
            if not status:
                text = f"the service failed on this request; its log has the cause under {request_id}"
                await problem(500, text, scope)(scope, receive, send_out)
        finally:
            seconds = time.monotonic() - started
            route = getattr(scope.get("route"), "path", None) or "other"
            # Any word may be sent as a method; those that a route has no answer for share one label.
            method = "any" if route == "other" or status == 405 else scope["method"]
            self.metrics.requests.labels(route, method, status or "gone").inc()
            self.metrics.request_seconds.labels(route).observe(seconds)
            fields = {
                "request_id": request_id,
                "method": scope["method"][:16],
                "route": route,
                "status": status or "gone",
                "seconds": round(seconds, 3),
                "key": scope["state"].get("caller"),
                "client": (scope.get("client") or ("",))[0][:64],  # a proxy's header may say anything
                **scope["state"].get("logged", {}),
            }
            logger.info("request", extra={"fields": fields})


class Doors:
    """Refuse foreign web pages, unknown names of this service, and bodies that are not JSON, too large or too slow."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self.app = app
        self.origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is None and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await _read(receive)
            except TimeoutError:
                refusal = 408, f"the body was not complete after {BODY_SECONDS:g} seconds"
            else:
                if body is None:
                    return
                if len(body) > MAX_BODY_BYTES:
                    refusal = 413, f"the body has more than {MAX_BODY_BYTES:,} bytes"
                receive = _replay(bytes(body), receive)
        if refusal is not None:
            await problem(*refusal, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        # Probes of a cluster use the pod's address, and the response says nothing private.
        if scope["path"] != HEALTH and not self.origins.known(host):
            return 421, "this service is not known by the name in Host: add it to allowed_hosts"
        if not all(self.origins.same(origin, host) for origin in headers.getlist("origin")):
            return 403, "requests from pages of other origins are not accepted"
        if twice := next((name for name in _ONCE if len(headers.getlist(name)) > 1), None):
            return 400, f"the header {twice} is there more than once"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers and not kind
        if scope["method"] == "POST" and kind != "application/json" and not empty:
            return 415, "send the body as application/json"
        return None


async def _read(receive: Receive) -> bytearray | None:
    """Return the body, cut just above the limit; `None` when the client went away."""
    body, size, more = bytearray(), 0, True
    while more and size <= DRAIN_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        # Beyond the limit the rest is read but not kept: a client that is still sending would not see the response.
        if len(body) <= MAX_BODY_BYTES:
            body += chunk[: MAX_BODY_BYTES + 1 - len(body)]
        more = message.get("more_body", False)
    return body


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
