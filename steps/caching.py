"""Results that must not be served from the cache."""

from __future__ import annotations

from collections.abc import Sequence

from zenml import get_step_context
from zenml.client import Client
from zenml.utils.time_utils import utc_now

from agent.metrics import Prediction


def keep_errors_out_of_cache(predictions: Sequence[Prediction]) -> None:
    """Make the next run repeat the current step if any question ended in an error, because the cause may be gone."""
    if any(prediction.error is not None for prediction in predictions):
        Client().update_step_run(get_step_context().step_run.id, cache_expires_at=utc_now())
