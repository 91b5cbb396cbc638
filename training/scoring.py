"""From a finished group to its rewards: verifiable (the task's own), RULER (an LLM compares the group), or a blend of the two."""

from __future__ import annotations

import os

import art

from training.errors import BadInput
from training.settings import TrainerSettings
from training.task import Task


def require_judge(settings: TrainerSettings) -> None:
    """Raises `BadInput` when rewards need a hosted judge and its key is missing: before anything is spent."""
    hosted = settings.ruler_model.startswith("openai/") and not settings.ruler_api_base
    if settings.scoring != "verifiable" and hosted and not os.environ.get("OPENAI_API_KEY"):
        raise BadInput(
            f"scoring={settings.scoring} asks {settings.ruler_model}, which needs OPENAI_API_KEY in the environment or "
            "in .env; scoring=verifiable needs no judge, ruler_api_base names one of your own"
        )


def _judge_parameters(settings: TrainerSettings) -> dict[str, object] | None:
    if settings.ruler_api_base is None:
        return None
    # LiteLLM insists on a key, which a server of one's own may not need.
    return {"api_base": settings.ruler_api_base, "api_key": os.environ.get("OPENAI_API_KEY", "none")}


async def score_group(
    task: Task, group: art.TrajectoryGroup, settings: TrainerSettings
) -> art.TrajectoryGroup | None:
    """The group with its final rewards; `None` when the judge could not score it, so that the step goes on without it.

    The task scores every group, because accuracy is reported however rewards are made.
    """
    verified = await task.score(group)
    if settings.scoring == "verifiable":
        return verified
    # LiteLLM costs a second at import, and only judged runs need it.
    from art.rewards import ruler_score_group

    own = [trajectory.reward for trajectory in verified.trajectories]
    judged = await ruler_score_group(
        verified,
        settings.ruler_model,
        extra_litellm_params=_judge_parameters(settings),
        swallow_exceptions=True,
    )
    if judged is None:
        return None
    share = 1.0 if settings.scoring == "ruler" else settings.ruler_weight
    for trajectory, verifiable in zip(judged.trajectories, own, strict=True):
        trajectory.metrics["verifiable_reward"] = verifiable
        trajectory.reward = share * trajectory.reward + (1 - share) * verifiable
    return judged
