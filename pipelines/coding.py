"""Training and evaluating the coding agent (`task: coding`)."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from zenml import Model, pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

from configs.schema import CodingConfig, Config, EvaluationConfig, TrainingConfig, section
from pipelines.planning import plan_lines
from pipelines.running import run_pipeline
from reports.console import console, say
from reports.page import write_text
from reports.tables import closing_table, gain
from steps.artifact_names import CHECKPOINT, CODING_MODEL_NAME, METRICS, REPORT, TRAINING_CURVE, WARM_START
from steps.coding.sandbox_service import sandbox_service
from steps.project import MODELS, OUTPUTS, ROOT, RUNS, code_of
from tasks.coding.rewards import reward_function
from tasks.coding.sandbox_client import require_sandbox
from tasks.coding.task import load_scenarios, require_room
from training.errors import BadInput
from training.plan import earlier_pace, plan
from training.preflight import Check, preflight
from training.scoring import require_scoring
from training.stopping import require_stop_rules


# Failing fast raises what a step raised, and not that some step failed.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def coding_training_pipeline(config: TrainingConfig, coding: CodingConfig, run_key: str) -> None:
    from steps.coding.train_coding_agent import train_coding_agent
    from steps.training.setup_art_model import setup_art_model

    base = setup_art_model(base_model=config.base_model)
    train_coding_agent(config=config, coding=coding, run_key=run_key, base=base)


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def coding_evaluation_pipeline(
    config: EvaluationConfig, coding: CodingConfig, checkpoint: UUID, warm_start: UUID
) -> None:
    from steps.coding.evaluate_coding_agent import evaluate_coding_agent

    client = Client()
    evaluate_coding_agent(
        config=config,
        coding=coding,
        checkpoint=client.get_artifact_version(checkpoint),
        warm_start=client.get_artifact_version(warm_start),
    )


def run_coding(config: Config, pipeline_name: str, *, dry_run: bool, cache: bool, summary: Path | None) -> None:
    """Train, or train and evaluate; a finished training of the same settings and code is reused.

    Raises:
        BadInput: the pipeline has no coding variant, or a setting, the sandbox or a scenario cannot be used.
    """
    if pipeline_name not in ("train", "eval", "all"):
        raise BadInput(f"--pipeline {pipeline_name} has no coding variant: task=coding is for train, eval and all")
    if config.step_settings or config.continue_from:
        raise BadInput("step_settings and continue_from are for task=email-search only: leave them out")
    training, coding = section(config, TrainingConfig), section(config, CodingConfig)
    if dry_run:
        _run_plan(training, coding)
        return
    require_scoring(training)
    require_stop_rules(training)
    _require_task(training, coding)
    if coding.sandbox_url is not None:
        require_sandbox(coding.sandbox_url)
    found = _train(config, training, coding, cache=cache)
    if pipeline_name != "train":
        _evaluate(config, coding, *found, cache=cache, summary=summary)


def _require_task(training: TrainingConfig, coding: CodingConfig) -> str:
    """Check reward, prompts and context. Returns the scenarios in words."""
    reward_function(coding.coding_reward)
    if coding.max_context_tokens > training.max_context:
        raise BadInput(
            f"max_context_tokens={coding.max_context_tokens} is above max_context={training.max_context}: "
            "longer rollouts are not learnt from"
        )
    scenarios = load_scenarios(coding)
    require_room(scenarios, coding, max_tokens=training.max_tokens, system_prompt=training.system_prompt)
    held_out = sum(scenario.split == "test" for scenario in scenarios)
    return f"{len(scenarios) - held_out} bugs to train on, {held_out} held out"


def _run_plan(training: TrainingConfig, coding: CodingConfig) -> None:
    """Print checks and plan. Raises BadInput when a check fails."""

    def task() -> str:
        return _require_task(training, coding)

    def sandbox() -> str:
        with sandbox_service(coding.sandbox_url, capacity=2 * training.max_concurrent) as url:
            return require_sandbox(url)

    checks = []
    for name, look in (("task", task), ("sandbox", sandbox)):
        try:
            checks.append(Check(name, True, look()))
        except BadInput as error:
            checks.append(Check(name, False, str(error)))
        say(str(checks[-1]))
    for check in preflight(training, training.base_model, models=MODELS, runs=RUNS):
        say(str(check))
        checks.append(check)
    say("")
    if failed := [check for check in checks if not check.ok]:
        more = f" (and {len(failed) - 1} more above)" if len(failed) > 1 else ""
        raise BadInput(f"{failed[0].found}{more}")
    pace = earlier_pace(RUNS, training.base_model, training.backend)
    for line in plan_lines(plan(training, max_turns=coding.max_repl_steps, max_tokens=training.max_tokens, pace=pace)):
        say(line)
    say("nothing was trained (--dry-run)")


def _train(config: Config, training: TrainingConfig, coding: CodingConfig, *, cache: bool) -> tuple[str, UUID, UUID]:
    """Model version, checkpoint and warm start of the training, which is reused when it is finished."""
    nonce = "" if cache else datetime.now(UTC).isoformat()
    # Where the sandbox is and how many bugs are held out makes no other training of it.
    of_run = coding.model_dump(mode="json", exclude={"sandbox_url", "sandbox_patience", "coding_test_size"})
    parts = [training.model_dump(mode="json"), of_run, _code(), nonce]
    key = f"c{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:9]}"
    say(f"training run {key} ({training.base_model}, backend {training.backend}, {coding.coding_reward} reward)")
    run = run_pipeline(
        coding_training_pipeline,
        {"config": training, "coding": coding, "run_key": key},
        enable_cache=cache,
        model=Model(name=CODING_MODEL_NAME, version=key),
        settings=config.settings,
    )
    if run.steps["train_coding_agent"].status.value == "cached":
        say("training: this run is finished, reused (--no-cache starts a new one)")
    outputs: dict[str, Any] = run.steps["train_coding_agent"].outputs
    report = write_text(OUTPUTS / "reports" / f"training-{key}.html", outputs[TRAINING_CURVE][0].load())
    say(f"training report: {os.path.relpath(report)}")
    return key, outputs[CHECKPOINT][0].id, outputs[WARM_START][0].id


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
        },
        enable_cache=cache,
        model=Model(name=CODING_MODEL_NAME, version=key),
        settings=config.settings,
    )
    outputs: dict[str, Any] = run.steps["evaluate_coding_agent"].outputs
    metrics = outputs[METRICS][0].load()
    report = write_text(OUTPUTS / "reports" / f"{key}.html", outputs[REPORT][0].load())
    if summary is not None:
        write_text(summary, json.dumps(metrics, indent=2) + "\n")
    say("")
    console.print(closing_table(metrics))
    if added := gain(metrics):
        say(added)
    say(f"report: {os.path.relpath(report)}")


def _code() -> str:
    """The code that decides what a training run does."""
    digest = hashlib.sha256()
    for name in code_of("tasks", "training", "steps/coding"):
        digest.update(f"{name}\0".encode())
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()
