"""The policy that a model's server answers with."""

from __future__ import annotations

import art

from training.settings import TrainerSettings
from training.task import Policy


def current_policy(
    model: art.TrainableModel, settings: TrainerSettings, *, max_tokens: int, greedy: bool = False
) -> Policy:
    """Return the policy of the latest checkpoint of `model`. `max_tokens` limits a reply."""
    cuts = {"temperature": settings.temperature, "top_p": settings.top_p, "min_p": settings.min_p}
    return Policy(
        base_url=model.inference_base_url or "",
        api_key=model.inference_api_key or "none",
        model=model.get_inference_name(),
        max_tokens=max_tokens,
        # Other servers than W&B's are ours, with a template in which no model thinks.
        thinks=False if settings.backend == "serverless" else None,
        **({"temperature": 0.0} if greedy else cuts),
    )
