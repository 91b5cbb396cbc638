"""The policy that a model's server answers with."""

from __future__ import annotations

import art

from training.task import Policy


def current_policy(
    model: art.TrainableModel, *, temperature: float, max_tokens: int, top_p: float = 1.0, min_p: float = 0.0
) -> Policy:
    """Return the policy of the latest checkpoint of `model`. `max_tokens` limits a reply."""
    return Policy(
        base_url=model.inference_base_url or "",
        api_key=model.inference_api_key or "none",
        model=model.get_inference_name(),
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        max_tokens=max_tokens,
    )
