"""`--pipeline learn-loop`: run the learn loop, at most one at a time per graph, and print the result."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from zenml.client import Client

from cluster.placement import LOOP_STEPS, require_steps, runs_elsewhere
from cluster.stack import require_remote_stack
from cluster.zenml_settings import require_zenml_settings
from commands.continue_from import with_start
from commands.dry_run import plan_lines, require_none, say_checks
from commands.pipeline_run import run_pipeline
from commands.train import base_model_content
from configs.config import Config
from configs.gone import fixed_otherwise
from configs.loading import explicit_values, load_config
from configs.schema import ConfigError, LearnLoopConfig
from reports.console import console, say
from reports.learn_loop import held_out_table, notes_on
from steps.artifact_names import LEARN_LOOP_EVALUATION, LEARN_LOOP_PAGE
from steps.learn_loop.world import TASK, model_name, source_version, sources_of, world_of
from steps.project import LEARN_LOOPS, MODELS, ROOT, digest_of, learn_loop_code
from tasks.outreach.graph import KnowledgeGraph
from tasks.outreach.scenarios import Scenario
from tasks.outreach.settings import SYNTHETIC_GRAPH
from tasks.outreach.webhook import require_webhook
from training.errors import BadInput
from training.files import write_text
from training.guard.plan import earlier_pace, plan_run
from training.guard.preflight import check_run, check_run_elsewhere
from training.guard.stopping import hold_out, require_stop_rules
from training.loop.decisions import compared_decisions
from training.record.experiment import EXPERIMENT_FILE, Experiment
from training.scoring.scorer import require_scoring

DEFAULT_CONFIG = ROOT / "configs" / "learn_loop.yaml"
EVALUATION_FILE, PAGE_FILE = "evaluation.json", "page.html"


def run_learn_loop(file: Path | None, overrides: list[str], *, cache: bool, dry_run: bool, wait: bool = False) -> None:
    """Run the learn loop and print how replies changed. The same settings resume the same run.

    While another loop works on the graph, this one is refused or, with `wait`, begins after it.

    Raises:
        BadInput: a setting, graph or scenario cannot be used, or another loop works on this graph.
        ConfigError: a setting cannot be read.
    """
    placed = with_start(placed_config(file, overrides), model=model_name(), dry_run=dry_run)
    config = placed.for_learn_loop()
    graph, scenarios = world_of(config)
    require_settings(config, scenarios, keys=not dry_run)
    require_placement(placed, config)
    if dry_run:
        _say_plan(config, graph, scenarios, elsewhere=runs_elsewhere("learn_outreach", placed.step_settings))
        return
    base = base_model_content(config.base_model, here=not runs_elsewhere("learn_outreach", placed.step_settings))
    run_id = config.experiment or run_key(config, base, "" if cache else datetime.now(UTC).isoformat())
    folder = LEARN_LOOPS / run_id
    _require_same_run(folder, config, cache=cache)
    with only_loop_on(config, wait=wait):
        _require_same_run(folder, config, cache=cache)  # one of this name may have begun in the meantime
        _say_what_is_fixed(folder)
        say(f"learn loop {run_id} ({config.base_model}, backend {config.backend}, {config.feedback} feedback)")
        from pipelines.learn_loop import learn_loop_pipeline

        arguments = {"config": config, "run_id": run_id, "source_version": source_version(config)}
        run = run_pipeline(
            learn_loop_pipeline,
            arguments,
            enable_cache=cache,
            settings=placed.settings,
            steps=placed.step_settings,
        )
    outputs = run.steps["evaluate_outreach"].outputs
    evaluation = outputs[LEARN_LOOP_EVALUATION][0].load()
    write_text(folder / EVALUATION_FILE, json.dumps(evaluation, indent=1))
    page = write_text(folder / PAGE_FILE, outputs[LEARN_LOOP_PAGE][0].load())
    console.print(held_out_table(evaluation))
    for sentence in notes_on(evaluation):
        say(sentence)
    say(f"results: {os.path.relpath(folder)}, page: {os.path.relpath(page)}")


def require_placement(placed: Config, config: LearnLoopConfig) -> None:
    """Raise BadInput if the active stack cannot run the loop as configured, or a pod would lack files of this machine."""
    require_zenml_settings(placed.settings, placed.step_settings)
    require_steps(placed.step_settings, LOOP_STEPS)
    require_remote_stack(placed.step_settings)
    if runs_elsewhere("learn_outreach", placed.step_settings) and config.feedback == "recorded":
        raise BadInput("feedback=recorded: its events are on this machine, and step learn_outreach runs on another")
    if Client().active_stack.orchestrator.config.is_remote and (config.graph != SYNTHETIC_GRAPH or config.prospects):
        raise BadInput(f"graph={config.graph} and prospects={config.prospects}: pods cannot read files of this machine")


def learn_loop_config(file: Path | None, overrides: list[str]) -> LearnLoopConfig:
    """Load the settings of a loop as its pipeline takes them."""
    return placed_config(file, overrides).for_learn_loop()


def placed_config(file: Path | None, overrides: list[str]) -> Config:
    """Load the settings of a loop, and where its steps run. ART_BASE_MODEL replaces the default of base_model.

    Raises ConfigError also for the settings of another task.
    """
    if (task := explicit_values(file, overrides).get("task", TASK)) != TASK:
        raise ConfigError(
            f"task={task}: --pipeline learn-loop trains task={TASK}; for other tasks use --pipeline train"
        )
    chosen = os.environ.get("ART_BASE_MODEL")
    if chosen and not any(word.startswith(("base_model=", "trainer.base_model=")) for word in overrides):
        overrides = [*overrides, f"base_model={json.dumps(chosen, ensure_ascii=False)}"]
    if project := os.environ.get("ART_PROJECT"):
        os.environ.setdefault("WANDB_PROJECT", project)
    return load_config(file or DEFAULT_CONFIG, [*overrides, f"task={TASK}"])


def require_settings(config: LearnLoopConfig, scenarios: Sequence[Scenario], *, keys: bool = True) -> None:
    """Raise `BadInput` for settings that contradict each other or the scenarios, before anything is spent.

    Without `keys`, API keys are not checked.
    """
    model_name()
    require_stop_rules(config)
    require_scoring(config, keys=keys)
    compared_decisions(config, (), (), "outreach")
    if config.validates and config.validation_metric == "accuracy":
        raise BadInput("validation_metric=accuracy: no e-mail is correct or wrong; use validation_metric=reward")
    if config.validates:
        hold_out([scenario for scenario in scenarios if scenario.split == "train"], config.validation_questions)
    if config.max_steps_off_policy:
        raise BadInput("max_steps_off_policy: an iteration uses the node scores of the one before it; set it to 0")
    if config.random_replies and config.feedback == "recorded":
        raise BadInput("random_replies: recorded feedback has no simulated prospects; set it to false")
    if config.webhook_url is not None:
        require_webhook(config.webhook_url, private=config.webhook_private)


def run_key(config: LearnLoopConfig, base: str | None, salt: str = "") -> str:
    """Return twelve hexadecimal digits, equal for the same settings, files, code and `base_model_content`."""
    settings = config.model_dump(mode="json", exclude={"webhook_url", "webhook_private"})
    return digest_of([salt, source_version(config), base, settings, learn_loop_code()])[:12]


def _require_same_run(folder: Path, config: LearnLoopConfig, *, cache: bool) -> None:
    if not (folder / EXPERIMENT_FILE).exists():
        return
    if not cache:  # its steps would run again, and find the training finished
        raise BadInput(
            f"--no-cache begins a new learn loop, and {folder.name} is an earlier one: choose another name with --set "
            "experiment=NAME, or leave out --no-cache to go on with it"
        )
    experiment = Experiment.load(folder)
    if experiment.latest_code not in (None, learn_loop_code()):
        raise BadInput(
            f"learn loop {folder.name} began with other code (commit {(experiment.git_revision or 'unknown')[:12]}) and "
            "cannot be resumed with today's: go back to that code, or begin a new run with --set experiment=ANOTHER_NAME"
        )
    begun, now = experiment.config, config.model_dump(mode="json")
    changed = sorted(key for key in now if begun.get(key) != now[key] and not key.startswith("webhook_"))
    sources = sources_of(config)
    changed += sorted(key for key, content in experiment.sources.items() if sources.get(key) != content)
    if changed:
        raise BadInput(
            f"learn loop {folder.name} began with another {', '.join(changed)}: continue with the same settings, or choose another "
            "name with --set experiment=NAME"
        )


def _say_what_is_fixed(folder: Path) -> None:
    if not (folder / EXPERIMENT_FILE).exists():
        return
    if differing := fixed_otherwise(Experiment.load(folder).config):
        say(f"learn loop {folder.name} goes on with values that are fixed now: {', '.join(differing)}")


@contextmanager
def only_loop_on(config: LearnLoopConfig, *, wait: bool = False) -> Iterator[None]:
    """Lock the graph of this configuration, without limit of time if `wait`. Raises `BadInput` if another loop works on it."""
    try:
        with graph_lock(graph_key(config)).acquire(timeout=-1 if wait else 0):
            yield
    except Timeout:
        raise BadInput("another learn loop works on this graph: cancel it, or add --wait to begin after it") from None


def graph_lock(key: str) -> FileLock:
    """Return the lock that a loop on the graph with this key holds."""
    LEARN_LOOPS.mkdir(parents=True, exist_ok=True)
    return FileLock(LEARN_LOOPS / f".graph-{key}.lock")


def is_at_work(key: str) -> bool:
    """Return whether any loop works on the graph with this key."""
    try:
        with graph_lock(key).acquire(timeout=0):
            return False
    except Timeout:
        return True


def graph_key(config: LearnLoopConfig) -> str:
    """Return a key of the graph, equal for loops on the same graph."""
    return digest_of([config.graph, config.graph_seed, source_version(config)])[:12]


def _say_plan(
    config: LearnLoopConfig, graph: KnowledgeGraph, scenarios: Sequence[Scenario], *, elsewhere: bool
) -> None:
    """Print checks and plan. Raises `BadInput` after both if a check failed."""
    held_out = sum(scenario.split == "test" for scenario in scenarios)
    prospects = f"{len(scenarios) - held_out} train and {held_out} held-out prospects"
    say(f"graph          {config.graph}: {len(graph.facts)} facts, {prospects}")
    here = check_run(config, config.base_model, models=MODELS, runs=LEARN_LOOPS)
    failed = say_checks(check_run_elsewhere(config) if elsewhere else here)
    pace = earlier_pace(LEARN_LOOPS, config.base_model, config.backend, task=TASK)
    for line in plan_lines(plan_run(config, max_turns=config.max_turns, max_tokens=config.max_tokens, pace=pace)):
        say(line)
    emails = 4 * held_out
    say(f"evaluation     {emails:,} e-mails to {held_out} held-out prospects, in addition")
    require_none(failed, "this plan cannot run here yet: ")
    say("nothing was run (--dry-run)")
