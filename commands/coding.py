"""`task: coding`: train and evaluate the agent that repairs code."""

from __future__ import annotations

import hashlib
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from zenml import Model

from cluster.placement import CODING_EVALUATION_STEPS, CODING_TRAINING_STEPS, require_steps, runs_elsewhere
from cluster.stack import require_remote_stack
from cluster.zenml_settings import require_zenml_settings
from commands.closing_table import print_closing_table
from commands.dry_run import plan_lines
from commands.pipeline_run import run_pipeline
from commands.train import base_model_content
from configs.schema import CodingConfig, Config, EvaluationConfig, TrainingConfig, section
from pipelines.coding import coding_evaluation_pipeline, coding_training_pipeline
from reports.console import say
from steps.artifact_names import CHECKPOINT, TRAINING_CURVE, WARM_START
from steps.coding.sandbox_service import sandbox_service
from steps.model_registry import production_version
from steps.project import MODELS, OUTPUTS, RUNS, coding_code
from tasks.coding.rewards import reward_function, reward_sources
from tasks.coding.sandbox_client import require_sandbox
from tasks.coding.task import BUILT_IN, load_scenarios, require_demonstrable, require_room
from training.decisions import compared_decisions
from training.errors import BadInput
from training.files import write_text
from training.loopback import is_here
from training.plan import earlier_pace, plan_run
from training.preflight import RunCheck, check_run, check_run_elsewhere
from training.scoring import require_scoring, scoring_sources
from training.stopping import hold_out, require_stop_rules

_OF_EMAIL = ("judge", "eval_samples", "baseline_model", "base_examples", "base_grammar")
"""Settings of training and evaluation that only the e-mail agent has."""


def run_task(
    config: Config,
    pipeline_name: str,
    *,
    dry_run: bool,
    cache: bool,
    summary: Path | None,
    schedule: str | None = None,
    checkpoint: str | None = None,
) -> None:
    """Train, or train and evaluate. Reuses a finished training with the same settings and code.

    Raises:
        BadInput: the pipeline or an option has no coding variant, or a setting, the sandbox or a scenario cannot be used.
    """
    _require_variant(config, pipeline_name, schedule=schedule, checkpoint=checkpoint)
    require_zenml_settings(config.settings, config.step_settings)
    training, coding = section(config, TrainingConfig), section(config, CodingConfig)
    if coding.project is not None:
        os.environ["WANDB_PROJECT"] = coding.project
    if dry_run:
        _require_placement(config, coding)
        _run_plan(training, coding, elsewhere=runs_elsewhere("train_coding_agent", config.step_settings))
        return
    _require_placement(config, coding)
    require_scoring(training, keys=not runs_elsewhere("train_coding_agent", config.step_settings))
    require_stop_rules(training)
    _require_task(training, coding)
    if not runs_elsewhere("train_coding_agent", config.step_settings):  # a pod may reach a service that we do not
        _require_sandbox(training, coding)
    found = _train(config, training, coding, cache=cache)
    if pipeline_name != "train":
        _evaluate(config, coding, *found, cache=cache, summary=summary)


def _require_placement(config: Config, coding: CodingConfig) -> None:
    """Raise BadInput if the active stack cannot run the steps as configured, or a pod could not reach the sandbox."""
    require_steps(config.step_settings, (*CODING_TRAINING_STEPS, *CODING_EVALUATION_STEPS))
    require_remote_stack(config.step_settings)
    steps = ("train_coding_agent", "evaluate_coding_agent", "ask_coding_production")
    elsewhere = [step for step in steps if runs_elsewhere(step, config.step_settings)]
    if elsewhere and (coding.sandbox_url is None or is_here(coding.sandbox_url)):
        raise BadInput(
            f"sandbox_url={coding.sandbox_url}: step {elsewhere[0]} runs in a pod, which has no right to confine the code that it runs: "
            "start `python -m sandbox` on another machine and name an address of it that pods reach"
        )


def _require_variant(config: Config, pipeline_name: str, *, schedule: str | None, checkpoint: str | None) -> None:
    """Raise BadInput for what only the e-mail agent has."""
    if pipeline_name == "deploy":
        raise BadInput("--pipeline deploy: the coding agent has no service; task=coding is for train, eval and all")
    if pipeline_name not in ("train", "eval", "all"):
        raise BadInput(f"--pipeline {pipeline_name} has no coding variant: task=coding is for train, eval and all")
    given = {
        "--schedule": schedule,
        "--checkpoint": checkpoint,
        "--from (continue_from)": config.continue_from,
    }
    if unknown := [name for name, value in given.items() if value]:
        raise BadInput(f"{' and '.join(unknown)}: for task=email-search only; leave it out with task=coding")
    if unused := [name for name in _OF_EMAIL if getattr(config, name) != Config.model_fields[name].default]:
        raise BadInput(f"{' and '.join(unused)}: no effect on task=coding; leave it out")


def _require_task(training: TrainingConfig, coding: CodingConfig) -> tuple[int, int]:
    """Check reward, prompts, context and validation. Return the number of bugs to train on and of those held out."""
    compared_decisions(training, (), (), "coding")
    reward_function(coding.coding_reward)
    if coding.max_context_tokens > training.max_context:
        raise BadInput(
            f"max_context_tokens={coding.max_context_tokens} is above max_context={training.max_context}: "
            "longer rollouts are not trained on"
        )
    require_demonstrable(coding, training.demonstrations)
    scenarios = load_scenarios(coding)
    require_room(scenarios, coding, max_tokens=training.max_tokens, system_prompt=training.system_prompt)
    bugs = [scenario for scenario in scenarios if scenario.split == "train"]
    if training.validates:
        hold_out(bugs, training.validation_questions)
    return len(bugs), len(scenarios) - len(bugs)


def _require_sandbox(training: TrainingConfig, coding: CodingConfig) -> str:
    """Return the health of the sandbox in words. Without a `sandbox_url` one is started here, and stopped again.

    Raises:
        BadInput: it cannot be used, or has no images although the bugs need them.
    """
    if coding.bugs != BUILT_IN and coding.sandbox_url is None:
        raise BadInput(
            f"bugs={coding.bugs}: these bugs come as container images; start a sandbox with `python -m sandbox --set "
            "runner=docker` or `--set runner=kubernetes` and name it by sandbox_url"
        )
    images = coding.bugs != BUILT_IN
    with sandbox_service(coding.sandbox_url, capacity=2 * training.max_concurrent, images=images) as url:
        return require_sandbox(url, images=images, workspaces=training.max_concurrent)


def _run_plan(training: TrainingConfig, coding: CodingConfig, *, elsewhere: bool) -> None:
    """Print checks and plan. Raises BadInput when a check fails."""

    planned = training

    def task() -> str:
        nonlocal planned
        bugs, held_out = _require_task(training, coding)
        planned = _within_epochs(training, bugs)
        return f"{bugs} bugs to train on, {held_out} held out"

    def sandbox() -> str:
        return _require_sandbox(training, coding)

    checks = []
    for name, look in (("task", task), *([] if elsewhere else [("sandbox", sandbox)])):
        try:
            checks.append(RunCheck(name, True, look()))
        except BadInput as error:
            checks.append(RunCheck(name, False, str(error)))
        say(str(checks[-1]))
    here = check_run(training, training.base_model, models=MODELS, runs=RUNS)
    for check in check_run_elsewhere(training) if elsewhere else here:
        say(str(check))
        checks.append(check)
    say("")
    if failed := [check for check in checks if not check.ok]:
        more = f" (and {len(failed) - 1} more above)" if len(failed) > 1 else ""
        raise BadInput(f"{failed[0].found}{more}")
    pace = earlier_pace(RUNS, training.base_model, training.backend)
    for line in plan_lines(
        plan_run(planned, max_turns=coding.max_repl_steps, max_tokens=training.max_tokens, pace=pace)
    ):
        say(line)
    say("nothing was trained (--dry-run)")


def _within_epochs(training: TrainingConfig, bugs: int) -> TrainingConfig:
    """Return the settings with the steps that the trainer takes: those of `epochs`, if they are fewer than `max_steps`."""
    if training.epochs is None:
        return training
    asked = bugs - (training.validation_questions if training.validates else 0)
    steps = training.epochs * math.ceil(asked / training.groups_per_step)
    return training.model_copy(update={"max_steps": min(steps, training.max_steps), "epochs": None})


def _train(config: Config, training: TrainingConfig, coding: CodingConfig, *, cache: bool) -> tuple[str, UUID, UUID]:
    """Return model version, checkpoint and warm start of the training. Reuses a finished one."""
    base = base_model_content(training.base_model, here=not runs_elsewhere("train_coding_agent", config.step_settings))
    key = run_key(training, coding, base, "" if cache else datetime.now(UTC).isoformat())
    say(f"training run {key} ({training.base_model}, backend {training.backend}, {coding.coding_reward} reward)")
    run = run_pipeline(
        coding_training_pipeline,
        {"config": training, "coding": coding, "run_key": key},
        enable_cache=cache,
        model=Model(name=coding.model_name, version=key),
        settings=config.settings,
        steps={name: step for name, step in config.step_settings.items() if name in CODING_TRAINING_STEPS},
    )
    if run.steps["train_coding_agent"].status.value == "cached":
        say("training: this run is finished, reused (--no-cache starts a new one)")
    outputs: dict[str, Any] = run.steps["train_coding_agent"].outputs
    report = write_text(OUTPUTS / "reports" / f"training-{key}.html", outputs[TRAINING_CURVE][0].load())
    say(f"training report: {os.path.relpath(report)}")
    return key, outputs[CHECKPOINT][0].id, outputs[WARM_START][0].id


def run_key(training: TrainingConfig, coding: CodingConfig, base: str | None, nonce: str = "") -> str:
    """Return the key of a training run, equal for the same settings, bugs, rewards, code and `base_model_content`.

    It names the model version.
    """
    # A run is the same on any sandbox. The number of held-out built-in bugs does not change those to train on.
    irrelevant = {
        "model_name",
        "project",
        "sandbox_url",
        "sandbox_patience",
        *(["coding_test_size"] if coding.bugs == BUILT_IN else []),
    }
    parts = [
        training.model_dump(mode="json"),
        coding.model_dump(mode="json", exclude=irrelevant),
        [bug.id for bug in load_scenarios(coding) if bug.split == "train"],
        scoring_sources(training),
        reward_sources(coding.coding_reward),
        coding_code(),
        base,
        nonce,
    ]
    return f"c{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:9]}"


def _evaluate(
    config: Config,
    coding: CodingConfig,
    key: str,
    checkpoint: UUID,
    warm_start: UUID,
    *,
    cache: bool,
    summary: Path | None,
) -> None:
    run = run_pipeline(
        coding_evaluation_pipeline,
        {
            "config": section(config, EvaluationConfig),
            "coding": coding,
            "checkpoint": checkpoint,
            "warm_start": warm_start,
            "production": _other_in_production(coding.model_name, key),
        },
        enable_cache=cache,
        model=Model(name=coding.model_name, version=key),
        settings=config.settings,
        steps={name: step for name, step in config.step_settings.items() if name in CODING_EVALUATION_STEPS},
    )
    _, report = print_closing_table(run, key, summary=summary)
    say(f"report: {report}")


def _other_in_production(model: str, key: str) -> UUID | None:
    """Return the id of the checkpoint of the version in production, `None` when it is the evaluated one or there is none."""
    version = production_version(model)
    checkpoint = version.get_artifact(CHECKPOINT) if version and version.name != key else None
    return checkpoint.id if checkpoint else None
