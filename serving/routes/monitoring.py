"""Routes about the service itself: model, health and metrics."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response

from serving.access import Caller
from serving.answering import Answering
from serving.bodies import Health, ServedModel
from serving.errors import documented
from serving.metrics import Metrics


def add_routes(
    fastapi: FastAPI, answering: Answering[Any], metrics: Metrics, authenticated: Callable[..., Awaitable[Caller]]
) -> None:
    """Add `/model`, `/health` and `/metrics`."""
    asking = Annotated[Caller, Depends(authenticated)]

    @fastapi.get("/model", responses=documented(401, 403, 421), tags=["service"])
    async def model(caller: asking) -> ServedModel:
        """Return the checkpoint that answers, and since when it is loaded."""
        return answering.service.model

    @fastapi.get("/health", responses={503: {"model": Health}}, tags=["service"])
    async def health(response: Response) -> Health:
        """Return 200 while the model answers, 503 while it does not. Needs no key."""
        healthy = answering.service.is_healthy()
        response.status_code = 200 if healthy else 503
        status = "healthy" if healthy else "the model's server does not answer"
        return Health(status=status, load_id=answering.service.model.load_id)

    @fastapi.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **documented(401, 403, 421)},
        tags=["service"],
    )
    async def prometheus(caller: asking) -> Response:
        """Return metrics in Prometheus' text format."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
