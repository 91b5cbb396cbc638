"""The route that takes ratings of answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, FastAPI

from serving.access import Caller
from serving.bodies import Accepted, Feedback
from serving.errors import BODY_ERRORS, Rejected, documented
from serving.feedback import FeedbackQueue, TokenRefused
from serving.log import cause
from serving.metrics import Metrics

logger = logging.getLogger(__name__)


def add_routes(
    fastapi: FastAPI, ratings: FeedbackQueue, metrics: Metrics, authenticated: Callable[..., Awaitable[Caller]]
) -> None:
    """Add `/feedback`."""
    asking = Annotated[Caller, Depends(authenticated)]

    @fastapi.post(
        "/feedback", status_code=201, responses=documented(*BODY_ERRORS, 401, 409, 410, 503), tags=["feedback"]
    )
    async def rate(feedback: Feedback, caller: asking) -> Accepted:
        """Rate an answer once. A person reviews ratings before they become questions to train or evaluate on."""
        try:
            await asyncio.to_thread(ratings.add, feedback, caller.name)
        except TokenRefused as refusal:
            raise Rejected(refusal.status, str(refusal)) from None
        except OSError as error:
            logger.error("feedback not stored", extra={"fields": cause(error)})
            raise Rejected(503, "feedback cannot be stored at the moment", {"Retry-After": "60"}) from None
        metrics.feedback.labels(feedback.verdict).inc()
        return Accepted()
