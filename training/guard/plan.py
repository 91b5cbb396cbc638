"""Estimate the work, time and cost of a run from its settings and the pace of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from training.errors import BadInput
from training.guard.gpu_use import gpu_use
from training.record.experiment import EXPERIMENT_FILE, MAIL_TASK, Experiment
from training.record.history import HISTORY_FILE, StepRecord, read_history
from training.scoring.ruler import request_price
from training.settings import TrainerSettings

_TOKENS_PER_VERDICT = 80
"""Tokens of the judge's reply per rollout: an explanation, a score and an id."""


class Pace(BaseModel):
    """Speed of an earlier run with the same task, base model and backend."""

    seconds_per_rollout: float
    """Including the update. With decisions: per planned reply; many are not sampled, because groups end after their probes."""
    seconds_per_validation_rollout: float | None = None
    """`None` where unknown; then `seconds_per_rollout` is used."""
    seconds_per_demonstration: float | None
    tokens_per_rollout: float
    """Sampled tokens."""
    source: str
    flops: float | None = None
    """Speed of the machine (`training.backends.torch.speed`); `None` where unknown."""

    def at(self, flops: float) -> Pace:
        """Return the pace of a machine with this speed; the same pace if that of its own machine is unknown."""
        if self.flops is None:
            return self
        times = self.flops / flops
        scaled = {
            name: value * times
            for name in ("seconds_per_rollout", "seconds_per_validation_rollout", "seconds_per_demonstration")
            if (value := getattr(self, name)) is not None
        }
        return self.model_copy(update={**scaled, "flops": flops})


class Plan(BaseModel):
    """Estimates for a whole run, from its first step. `None` means unknown.

    With `max_extra_groups` or `epochs`, rollouts, judge requests and all that follows from them are upper bounds. With
    `probe_rollouts`, replaced groups are counted as if they ended after their probes, as most do.
    """

    backend: str
    demonstrations: int
    steps: int
    """An upper bound if `epochs` is set."""
    epochs: int | None
    questions_for_fewer_steps: int
    """Number of train questions up to which `epochs` ends the run before `steps`."""
    rollouts: int
    rollouts_are_bound: bool
    """False if replaced groups may need more rollouts than planned."""
    validation_rollouts: int
    most_tokens: int
    """Sampled tokens if every group is played whole and every rollout uses all its turns and tokens."""
    tokens: int | None
    seconds: float | None
    steps_ahead: int
    """Steps gathered ahead of the optimizer: the maximum off-policy lag, and the work that a stop rule may discard."""
    gpu_hours: float | None
    """None without a GPU or if the time is unknown."""
    gpu_cost: float | None
    judge_requests: int
    most_judge_cost: float | None
    """US dollars if every rollout fills its context, without retries and reasoning tokens."""
    pace: Pace | None


def plan_run(
    settings: TrainerSettings, *, max_turns: int, max_tokens: int, pace: Pace | None, decisions: Sequence[str] = ()
) -> Plan:
    """Plan a run whose rollouts have at most `max_turns` replies of `max_tokens` tokens.

    With `decisions`, a rollout is a single reply at one of them, and an episode is taken to have each of them once.
    """
    extra = 0 if decisions else settings.max_extra_groups
    groups_per_step = (settings.groups_per_step + extra) * max(1, len(decisions))
    whole = settings.max_steps * groups_per_step * settings.rollouts_per_group
    rollouts = whole - settings.max_steps * extra * (settings.rollouts_per_group - settings.first_rollouts)
    validations = 0
    if settings.validates:
        validations = 1 + math.ceil(settings.max_steps / settings.validate_every)
    validated = validations * settings.validation_questions
    judge_requests = settings.max_steps * groups_per_step if "ruler" in settings.reward_weights else 0
    if settings.measures_wins:
        judge_requests += 2 * math.ceil(settings.max_steps / settings.validate_every) * settings.validation_questions
    demonstrations = settings.warm_start_demonstrations
    seconds = None
    if pace is not None and (pace.seconds_per_demonstration is not None or not demonstrations):
        seconds = rollouts * pace.seconds_per_rollout + demonstrations * (pace.seconds_per_demonstration or 0.0)
        seconds += validated * (pace.seconds_per_validation_rollout or pace.seconds_per_rollout)
        seconds = min(seconds, settings.stop_seconds or seconds)
    return Plan(
        backend=settings.backend,
        demonstrations=demonstrations,
        steps=settings.max_steps,
        epochs=settings.epochs,
        questions_for_fewer_steps=(settings.max_steps - 1) // (settings.epochs or 1) * settings.groups_per_step,
        rollouts=rollouts,
        rollouts_are_bound=not decisions and (not extra or settings.first_rollouts == settings.rollouts_per_group),
        validation_rollouts=validated,
        most_tokens=(whole + validated) * max_turns * max_tokens,
        tokens=round((rollouts + validated) * pace.tokens_per_rollout) if pace else None,
        seconds=seconds,
        steps_ahead=min(settings.max_steps_off_policy, max(0, settings.max_steps - 1)),
        **(gpu_use(seconds, settings) if seconds is not None else {"gpu_hours": None, "gpu_cost": None}),
        judge_requests=judge_requests,
        most_judge_cost=_judge_cost(settings, judge_requests),
        pace=pace,
    )


def earlier_pace(
    runs: Path, base_model: str, backend: str, *, task: str = MAIL_TASK, decisions: bool = False
) -> Pace | None:
    """Return the pace of the newest run in this checkout of this task, base model and backend; `None` if there is none.

    The run compared replies if `decisions` is true, otherwise whole episodes. Those of another task may be many times as long.
    """
    found: list[tuple[Experiment, list[StepRecord]]] = []
    for file in runs.glob(f"*/{EXPERIMENT_FILE}"):
        try:
            experiment = Experiment.load(file.parent)
            rows = [row for history in file.parent.rglob(HISTORY_FILE) for row in read_history(history)]
        except BadInput:
            continue  # a damaged earlier run must not prevent the plan
        kind = (experiment.task, experiment.config.get("base_model"), experiment.config.get("backend"))
        same = kind == (task, base_model, backend)
        if same and any(row.phase == "grpo" and bool(row.decisions) == decisions for row in rows):
            found.append((experiment, rows))
    if not found:
        return None
    experiment, rows = max(found, key=lambda run: run[0].created)
    source = f"run {experiment.name} of {experiment.created:%Y-%m-%d}"
    return _pace(rows, experiment.config, source)


def _pace(rows: Iterable[StepRecord], config: Mapping[str, Any], source: str) -> Pace:
    seconds, rollouts, tokens, demonstrated = 0.0, 0.0, 0, None
    validations: list[float] = []
    for row in rows:
        validation_seconds = row.validation_seconds or 0.0
        if row.validation_seconds is not None:
            validations.append(row.validation_seconds)
        if row.phase == "grpo":
            seconds += row.seconds - validation_seconds
            if row.decisions:
                rollouts += config["groups_per_step"] * len(row.decisions) * config["rollouts_per_group"]
            else:
                rollouts += row.sampled_tokens / row.tokens_per_rollout if row.tokens_per_rollout else 0
            tokens += row.sampled_tokens
        elif demonstrations := (row.model_extra or {}).get("demonstrations"):
            demonstrated = (row.seconds - validation_seconds) / (demonstrations * config.get("warm_start_epochs", 1))
    validated = len(validations) * config.get("validation_questions", 0)
    return Pace(
        seconds_per_rollout=seconds / max(1.0, rollouts),
        seconds_per_validation_rollout=sum(validations) / validated if validated else None,
        seconds_per_demonstration=demonstrated,
        tokens_per_rollout=tokens / max(1.0, rollouts),
        source=source,
    )


def _judge_cost(settings: TrainerSettings, requests: int) -> float | None:
    if not requests:
        return 0.0
    read = settings.rollouts_per_group * settings.max_context
    price = request_price(settings, read, settings.rollouts_per_group * _TOKENS_PER_VERDICT)
    return None if price is None else requests * price
