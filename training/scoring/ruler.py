"""RULER: an LLM scores the rollouts of a group relative to each other.

ART sends the request; this module matches scores with rollouts, caches them and counts costs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from training.errors import BadInput
from training.files import write_text
from training.llm_client import REQUEST_TIMEOUT, error_text, key_for, price_of_tokens, refusal, repeated, require_model
from training.settings import TrainerSettings

if TYPE_CHECKING:
    import art
    from art.metrics import MetricsBuilder
    from art.rewards.ruler import TrajectoryScore

_OURS = ("model", "messages", "api_base", "api_key", "response_format", "caching", "stream", "timeout", "num_retries")


class JudgeUse(BaseModel):
    """Requests, time and cost of judging.

    `seconds` is the sum over requests; `cost` is in US dollars where the price is known.
    """

    requests: int = 0
    cached: int = 0
    """Groups with scores in the cache."""
    seconds: float = 0.0
    cost: float = 0.0
    problem: str = ""
    """Reason why a group has no scores."""

    def __add__(self, other: JudgeUse) -> JudgeUse:
        return JudgeUse(
            requests=self.requests + other.requests,
            cached=self.cached + other.cached,
            seconds=self.seconds + other.seconds,
            cost=self.cost + other.cost,
            problem=self.problem or other.problem,
        )


class Score(BaseModel):
    """The score of a rollout, between 0 and 1, and the judge's reason."""

    score: float
    explanation: str


class _CachedScores(BaseModel):
    scores: list[Score]


def require_ruler(settings: TrainerSettings, *, keys: bool = True) -> None:
    """Raise BadInput if the judge cannot be asked: unknown provider, missing key, forbidden parameter, no rubric.

    Without `keys`, API keys are not checked.
    """
    read_rubric(settings)
    for name in settings.extra_litellm_params:
        if name in _OURS:
            raise BadInput(
                f"extra_litellm_params: '{name}' is set by ruler_model, ruler_api_base or the project itself"
            )
    asking = f"scoring={settings.scoring}" if "ruler" in settings.reward_weights else "validation_metric=win_rate"
    require_model(
        settings.ruler_model,
        settings.ruler_api_base,
        setting="ruler_model",
        example="openai/o4-mini",
        needed_by=f"{asking} asks {settings.ruler_model}, which",
        hint="scoring=verifiable needs no judge, ruler_api_base names a self-hosted one",
        keys=keys,
    )
    if settings.stop_cost is not None and request_price(settings, 1000, 1000) is None:
        raise BadInput(
            f"stop_cost={settings.stop_cost:g} could never take effect: LiteLLM knows no price of {settings.ruler_model}"
        )


def request_price(settings: TrainerSettings, prompt_tokens: int, completion_tokens: int) -> float | None:
    """Return the cost of one request in US dollars; `None` if LiteLLM does not know the price."""
    return price_of_tokens(settings.ruler_model, prompt_tokens, completion_tokens)


def read_rubric(settings: TrainerSettings) -> str | None:
    """Return the text of `ruler_rubric`; `None` for the default of RULER. Raises BadInput if it is empty or unreadable."""
    if settings.ruler_rubric is None:
        return None
    try:
        text = Path(settings.ruler_rubric).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(f"ruler_rubric={settings.ruler_rubric} cannot be read: {reason}") from error
    if not text:
        raise BadInput(f"ruler_rubric={settings.ruler_rubric} is empty: write the grading standards into it")
    return text


def litellm_parameters(settings: TrainerSettings) -> dict[str, Any]:
    """Return the arguments of every request except its messages. LiteLLM must not retry, because `repeated` does."""
    parameters: dict[str, Any] = {"drop_params": True, **settings.extra_litellm_params}
    parameters |= {"timeout": REQUEST_TIMEOUT, "num_retries": 0}
    if settings.ruler_api_base is not None:
        parameters["api_base"] = settings.ruler_api_base
    if key := key_for(settings.ruler_model, settings.ruler_api_base):
        parameters["api_key"] = key
    return parameters


def judge_name(settings: TrainerSettings) -> str:
    """Return the name of the judge for messages."""
    where = f" at {settings.ruler_api_base}" if settings.ruler_api_base else ""
    return f"judge {settings.ruler_model}{where}"


class RulerJudge:
    """Scores groups with RULER and caches scores in the folder `cache`, so that no group is judged twice."""

    def __init__(self, settings: TrainerSettings, cache: Path) -> None:
        from art.rewards.ruler import DEFAULT_RUBRIC

        self._settings = settings
        self._cache = cache
        self._rubric = read_rubric(settings) or DEFAULT_RUBRIC

    async def compare(self, group: art.TrajectoryGroup) -> tuple[list[Score] | None, JudgeUse]:
        """Return one score per rollout; `None` if no reply was usable, with the reason in `problem`.

        Raises BadInput if the judge refuses the key or the request, as it would for every other group.
        """
        from art.metrics import MetricsBuilder
        from openai import OpenAIError

        settings, use = self._settings, JudgeUse()
        if any(trajectory.additional_histories for trajectory in group.trajectories):
            return None, JudgeUse(problem="RULER cannot compare rollouts with additional histories")
        messages = [trajectory.messages() for trajectory in group.trajectories]
        tools = group.trajectories[0].tools
        file = self._cache / f"{self._digest(messages, tools)}.json"
        if (known := _read(file, len(messages))) is not None:
            return known, JudgeUse(cached=1)

        async def ask() -> list[Score]:
            asked = time.monotonic()
            spent = MetricsBuilder("judge")
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    return _in_order(await self._ask(messages, tools, spent), len(messages))
            finally:
                use.requests += 1
                use.seconds += time.monotonic() - asked
                use.cost += (await spent.flush()).get("costs/judge/judge/ruler", 0.0)

        try:
            scores = await repeated(ask)
        except (OpenAIError, TimeoutError, ValueError) as error:
            use.problem = _problem(error)
            if refused := refusal(error, "ruler_model"):
                raise BadInput(f"{judge_name(settings)} {refused} ({use.problem})") from error
            return None, use
        write_text(file, _CachedScores(scores=scores).model_dump_json())
        return scores, use

    async def _ask(self, messages: list[Any], tools: Any, spent: MetricsBuilder) -> list[TrajectoryScore]:
        from art.rewards.ruler import ruler

        # Not ruler_score_group, which matches scores by their order and does not check them.
        with spent.activate_context():
            return await ruler(
                messages,
                self._settings.ruler_model,
                extra_litellm_params=litellm_parameters(self._settings),
                rubric=self._rubric,
                tools=tools,
            )

    def _digest(self, messages: list[Any], tools: Any) -> str:
        settings = self._settings
        who = [settings.ruler_model, settings.ruler_api_base, settings.extra_litellm_params, self._rubric]
        return hashlib.sha256(json.dumps([who, messages, tools], sort_keys=True, default=str).encode()).hexdigest()


def _in_order(scores: Sequence[TrajectoryScore], count: int) -> list[Score]:
    """Return the scores of rollouts 1 to `count`, matched by id and clamped to [0, 1].

    Raises ValueError if one is missing.
    """
    by_id: Mapping[str, TrajectoryScore] = {score.trajectory_id.strip(): score for score in scores}
    ids = [str(number) for number in range(1, count + 1)]
    if sorted(by_id) != sorted(ids) or len(scores) != count:
        raise ValueError(f"scores for {', '.join(s.trajectory_id for s in scores)} instead of 1 to {count}")
    ordered = [by_id[id] for id in ids]
    if not all(math.isfinite(score.score) for score in ordered):
        raise ValueError("a score is not a number")
    return [Score(score=min(1.0, max(0.0, s.score)), explanation=" ".join(s.explanation.split())) for s in ordered]


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):  # the error quotes the reply, which may be long
        return "the reply is not the JSON that was asked for"
    if isinstance(error, TimeoutError):
        return f"no reply within {REQUEST_TIMEOUT:g} s"
    return error_text(error)


def _read(file: Path, count: int) -> list[Score] | None:
    try:
        scores = _CachedScores.model_validate_json(file.read_bytes()).scores
    except (OSError, ValueError):
        return None
    return scores if len(scores) == count else None
