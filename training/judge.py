"""RULER: an LLM compares the rollouts of one group. ART asks it; retries, matching of scores, the cache and the costs are here."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from training.errors import BadInput
from training.settings import TrainerSettings

if TYPE_CHECKING:
    import art
    from art.metrics import MetricsBuilder
    from art.rewards.ruler import TrajectoryScore

_OURS = ("model", "messages", "api_base", "api_key", "response_format", "caching", "stream", "timeout", "num_retries")
_MAX_PROBLEM_CHARS = 200
_REFUSALS = {
    400: "does not accept the request",
    401: "refuses the key; set it in the environment or in .env",
    403: "refuses the key; set it in the environment or in .env",
    404: "is not there; check ruler_model and ruler_api_base",
}
"""Statuses with which a provider says that the same request will never be answered: no reason to ask again."""


class JudgeUse(BaseModel):
    """What judging took. `seconds` is the sum over requests, `cost` is in US dollars as far as ART and LiteLLM know the price."""

    requests: int = 0
    cached: int = 0
    """Groups whose scores were on disk."""
    seconds: float = 0.0
    cost: float = 0.0
    problem: str = ""
    """Why a group has no scores."""

    def __add__(self, other: JudgeUse) -> JudgeUse:
        return JudgeUse(
            requests=self.requests + other.requests,
            cached=self.cached + other.cached,
            seconds=self.seconds + other.seconds,
            cost=self.cost + other.cost,
            problem=self.problem or other.problem,
        )


class Score(BaseModel):
    """A rollout's score between 0 and 1, and the judge's reason for it."""

    score: float
    explanation: str


class _CachedScores(BaseModel):
    scores: list[Score]


def require_ruler(settings: TrainerSettings, *, keys: bool = True) -> None:
    """Raises BadInput when the judge cannot be asked: unknown provider, missing key, forbidden parameter, no rubric.

    Without `keys` the environment is not looked at.
    """
    read_rubric(settings)
    for name in settings.extra_litellm_params:
        if name in _OURS:
            raise BadInput(f"extra_litellm_params: '{name}' is set by other settings (ruler_...) or by RULER itself")
    import litellm  # seconds of import, which only judged runs need

    litellm.suppress_debug_info = True  # what went wrong is said by us, in one line
    try:
        litellm.get_llm_provider(model=settings.ruler_model, api_base=settings.ruler_api_base)
    except litellm.exceptions.BadRequestError as error:
        raise BadInput(
            f"ruler_model={settings.ruler_model} names no provider that LiteLLM knows; write provider/model, for example "
            "openai/o4-mini, or openai/NAME and ruler_api_base for a server of your own"
        ) from error
    if keys and settings.ruler_api_base is None and (missing := _missing_keys(settings)):
        asking = f"scoring={settings.scoring}" if "ruler" in settings.reward_weights else "validation_metric=win_rate"
        raise BadInput(
            f"{asking} asks {settings.ruler_model}, which needs {' and '.join(missing)} in the environment or "
            "in .env; scoring=verifiable needs no judge, ruler_api_base names one of your own"
        )
    if settings.stop_cost is not None and request_price(settings, 1000, 1000) is None:
        raise BadInput(f"stop_cost={settings.stop_cost:g} could never act: LiteLLM knows no price of {settings.ruler_model}")


def request_price(settings: TrainerSettings, prompt_tokens: int, completion_tokens: int) -> float | None:
    """US dollars of one request; `None` where LiteLLM does not know the judge's price."""
    import litellm

    try:
        costs = litellm.cost_per_token(
            model=settings.ruler_model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
        )
    except Exception:  # LiteLLM's word for a model without a price is a bare Exception
        return None
    return sum(costs) or None


def read_rubric(settings: TrainerSettings) -> str | None:
    """The grading standards of `ruler_rubric`; `None` for RULER's own. Raises BadInput when there are none in it."""
    if settings.ruler_rubric is None:
        return None
    try:
        text = Path(settings.ruler_rubric).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(f"ruler_rubric={settings.ruler_rubric} cannot be read: {reason}") from error
    if not text:
        raise BadInput(f"ruler_rubric={settings.ruler_rubric} is empty: write the grading standards into it")
    return text


def litellm_parameters(settings: TrainerSettings) -> dict[str, Any]:
    """What every request to the judge has beside its messages. We ask again by ourselves, so LiteLLM must not."""
    parameters: dict[str, Any] = {"drop_params": True, **settings.extra_litellm_params}
    parameters |= {"timeout": settings.ruler_timeout, "num_retries": 0}
    if settings.ruler_api_base is not None:
        # LiteLLM insists on a key, which a server of one's own may not need.
        parameters |= {"api_base": settings.ruler_api_base}
        parameters |= {"api_key": "none"} if _missing_keys(settings) else {}
    return parameters


def _missing_keys(settings: TrainerSettings) -> list[str]:
    import litellm

    missing = litellm.validate_environment(settings.ruler_model)["missing_keys"]
    return [name for name in missing if name.endswith(("KEY", "TOKEN"))]


def judge_name(settings: TrainerSettings) -> str:
    """The judge as messages call it."""
    where = f" at {settings.ruler_api_base}" if settings.ruler_api_base else ""
    return f"judge {settings.ruler_model}{where}"


class RulerJudge:
    """Scores groups by RULER. The same group is asked about once: its scores are kept in the folder `cache`."""

    def __init__(self, settings: TrainerSettings, cache: Path) -> None:
        from art.rewards.ruler import DEFAULT_RUBRIC

        self._settings = settings
        self._cache = cache
        self._rubric = read_rubric(settings) or DEFAULT_RUBRIC

    async def compare(self, group: art.TrajectoryGroup) -> tuple[list[Score] | None, JudgeUse]:
        """One score per rollout, in their order; `None` when no reply of `ruler_attempts` was usable (then `problem` says why).

        Raises BadInput when the judge refuses the key or the request: no other group would fare better.
        """
        from art.metrics import MetricsBuilder
        from openai import OpenAIError  # what LiteLLM's errors derive from

        settings, use = self._settings, JudgeUse()
        if any(trajectory.additional_histories for trajectory in group.trajectories):
            return None, JudgeUse(problem="RULER cannot compare rollouts with additional histories")
        messages = [trajectory.messages() for trajectory in group.trajectories]
        tools = group.trajectories[0].tools
        file = self._cache / f"{self._digest(messages, tools)}.json"
        if (known := _read(file, len(messages))) is not None:
            return known, JudgeUse(cached=1)
        for attempt in range(settings.ruler_attempts):
            if attempt:
                await asyncio.sleep(settings.ruler_backoff * 2 ** (attempt - 1))
            asked = time.monotonic()
            spent = MetricsBuilder("judge")
            try:
                async with asyncio.timeout(settings.ruler_timeout):
                    scores = _in_order(await self._ask(messages, tools, spent), len(messages))
            except (OpenAIError, TimeoutError, ValueError) as error:
                use.problem = _problem(error)
                if refusal := _REFUSALS.get(getattr(error, "status_code", 0)):
                    raise BadInput(f"{judge_name(settings)} {refusal} ({use.problem})") from error
            else:
                _write(file, scores)
                use.problem = ""
                return scores, use
            finally:
                use.requests += 1
                use.seconds += time.monotonic() - asked
                use.cost += (await spent.flush()).get("costs/judge/judge/ruler", 0.0)
        return None, use

    async def _ask(self, messages: list[Any], tools: Any, spent: MetricsBuilder) -> list[TrajectoryScore]:
        from art.rewards.ruler import ruler

        # ruler_score_group would add nothing: it matches scores by their order and takes them as they come.
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
    """Scores of the rollouts 1 to `count`, found by id and clamped to [0, 1]. Raises ValueError when one lacks or is no number."""
    by_id: Mapping[str, TrajectoryScore] = {score.trajectory_id.strip(): score for score in scores}
    ids = [str(number) for number in range(1, count + 1)]
    if sorted(by_id) != sorted(ids) or len(scores) != count:
        raise ValueError(f"scores for {', '.join(s.trajectory_id for s in scores)} instead of 1 to {count}")
    ordered = [by_id[id] for id in ids]
    if not all(math.isfinite(score.score) for score in ordered):
        raise ValueError("a score is not a number")
    return [Score(score=min(1.0, max(0.0, s.score)), explanation=" ".join(s.explanation.split())) for s in ordered]


def _problem(error: Exception) -> str:
    if isinstance(error, ValidationError):  # shows the reply, which may be long
        return "the reply is not the JSON that was asked for"
    if isinstance(error, TimeoutError):
        return "no reply within ruler_timeout"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_PROBLEM_CHARS]


def _read(file: Path, count: int) -> list[Score] | None:
    try:
        scores = _CachedScores.model_validate_json(file.read_bytes()).scores
    except (OSError, ValueError):
        return None
    return scores if len(scores) == count else None


def _write(file: Path, scores: list[Score]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        beside.write_text(_CachedScores(scores=scores).model_dump_json(), encoding="utf-8")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
