"""Tasks of `tasks/` (`task: coding`, `task: workbench`): train and evaluate them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

from cluster.placement import TASK_STEPS, require_steps, runs_elsewhere
from cluster.schedules import require_cron, require_scheduler
from cluster.stack import require_remote_stack
from cluster.zenml_settings import require_zenml_settings
from commands.agent_runs import Trained, evaluate_by, train_by
from commands.continue_from import artifact_of, with_start
from commands.dry_run import plan_lines, require_none, say_checks
from commands.resume import Resumable
from commands.schedules import schedule_pipeline
from commands.train import base_model_content
from configs.config import Config
from configs.schema import EvaluationConfig, TrainingConfig
from pipelines.task import task_evaluation_pipeline, task_retraining_pipeline, task_training_pipeline
from reports.console import say
from steps.model_registry import find_checkpoint
from steps.project import MODELS, ROOT, RUNS, digest_of, task_code
from tasks import load_plugin
from training.errors import BadInput
from training.guard.plan import earlier_pace, plan_run
from training.guard.preflight import RunCheck, check_run, check_run_elsewhere
from training.guard.stopping import hold_out, require_stop_rules
from training.llm_client import require_model, require_reply
from training.loop.decisions import compared_decisions
from training.plugin import Check, TaskPlugin
from training.scoring.scorer import require_scoring, scoring_sources

_OF_MAIL = ("judge", "eval_samples", "base_grammar")
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
    base_model: str | None = None,
    resumed: Resumable | None = None,
    with_profile: bool = True,
) -> None:
    """Train, or train and evaluate. Reuses a finished training with the same settings, data and code.

    With a `schedule`, a cron expression, both happen at its times, and nothing now.

    With `checkpoint`, evaluate that one without training; `base_model` then replaces the source that it names. `resumed` is a
    run to continue. Without `with_profile`, say which profile the task has.

    Raises:
        BadInput: the pipeline or an option is for the e-mail agent only, or a setting or the task's data cannot be used.
    """
    plugin = load_plugin(config.task)
    _require_for_mail_only(config, pipeline_name)
    profile = ROOT / "configs" / f"{config.task}.yaml"
    if not with_profile and profile.is_file():
        shown = profile.relative_to(Path.cwd()) if profile.is_relative_to(Path.cwd()) else profile
        say(f"without --config: {shown} has the settings for this task", quiet=True)
    require_zenml_settings(config.settings, config.step_settings)
    if schedule is not None:
        require_cron(schedule)
        require_scheduler()
    require_steps(config.step_settings, TASK_STEPS if schedule is None else (*TASK_STEPS, "find_production"))
    require_remote_stack(config.step_settings)
    named = _stored(checkpoint, config.task) if checkpoint is not None else None
    if named is None:
        model = plugin.model_name(config.for_task(plugin.settings))
        config = config if resumed else with_start(config, model=model, scheduled=schedule is not None, dry_run=dry_run)
    run = _Run(config, plugin, evaluates=pipeline_name != "train" or schedule is not None)
    run.require(train=checkpoint is None, dry_run=dry_run)
    if run.evaluates and "run_inference" not in run.elsewhere:
        _require_baseline(config.evaluation)
    if dry_run:
        run.say_plan()
        return
    if schedule is not None:
        run.schedule(schedule)
        return
    if resumed is not None:
        resumed.require_same_base()
    key = resumed.experiment.run if resumed else None
    trained = named or run.train(cache=cache, key=key)
    if pipeline_name != "train":
        run.evaluate(trained, cache=cache, summary=summary, base_model=base_model if named else None)


def _require_for_mail_only(config: Config, pipeline_name: str) -> None:
    """Raise BadInput for what only the e-mail agent has."""
    if pipeline_name not in ("train", "eval", "all"):
        raise BadInput(
            f"--pipeline {pipeline_name} has no variant for task={config.task}: it is for train, eval, all, export and deploy"
        )
    defaults = EvaluationConfig()
    if unused := [name for name in _OF_MAIL if getattr(config.evaluation, name) != getattr(defaults, name)]:
        raise BadInput(f"{' and '.join(unused)}: no effect on task={config.task}; leave it out")


def _require_baseline(evaluation: EvaluationConfig) -> None:
    """Raise BadInput if `baseline_model` cannot be asked, before a training is spent."""
    if (named := evaluation.baseline_model) is None:
        return
    # Tasks ask every provider through OpenAI's API.
    model, setting = f"openai/{named.removeprefix('openai/')}", "baseline_model"
    require_model(model, evaluation.baseline_api_base, setting=setting)
    require_reply(model, evaluation.baseline_api_base, setting=setting)


def _stored(checkpoint: str, task: str) -> Trained:
    stored = find_checkpoint(checkpoint)
    stored.checkpoint.require_task(task)
    return Trained(version=stored.checkpoint.manifest.name, checkpoint=UUID(artifact_of(stored)), warm_start=None)


def identity_of(plugin: TaskPlugin, chosen: Any, scenarios: Sequence[Any]) -> str:
    """Return the digest of what the plug-in says makes a run another one."""
    return digest_of(plugin.identity(chosen, scenarios))


def run_key(
    plugin: TaskPlugin, training: TrainingConfig, chosen: Any, identity: str, base: str | None, nonce: str = ""
) -> str:
    """Return the key of a training run, equal for the same settings, `identity_of` data, code and `base_model_content`.

    It names the model version. It begins with a letter, because ZenML reads a name of digits as a version number.
    """
    parts = [
        training.model_dump(mode="json"),
        identity,
        scoring_sources(training),
        plugin.sources(chosen),
        task_code(plugin),
        base,
        nonce,
    ]
    return f"{plugin.name[0]}{digest_of(parts)[:9]}"


class _Run:
    """A training and evaluation of a task with one configuration."""

    def __init__(self, config: Config, plugin: TaskPlugin, *, evaluates: bool) -> None:
        self.config, self.plugin, self.evaluates = config, plugin, evaluates
        self.training = config.for_training()
        self.decisions = compared_decisions(self.training, *plugin.decisions, plugin.name)
        self.chosen: Any = config.for_task(plugin.settings)
        self.model = plugin.model_name(self.chosen)
        elsewhere = [step for step in TASK_STEPS if runs_elsewhere(step, config.step_settings)]
        self.elsewhere: Sequence[str] = [
            step for step in elsewhere if step not in ("setup_art_model", "compute_metrics")
        ]

    @cached_property
    def scenarios(self) -> Sequence[Any]:
        """All scenarios, read once. Raises BadInput if two have one id: an evaluation pairs answers by it."""
        scenarios = self.plugin.scenarios(self.chosen)
        counts = Counter(scenario.id for scenario in scenarios)
        if twice := [id for id, count in counts.items() if count > 1]:
            raise BadInput(
                f"task={self.config.task}: several {self.plugin.unit} have the id {twice[0]!r}: use every id once"
            )
        return scenarios

    @cached_property
    def identity(self) -> str:
        return identity_of(self.plugin, self.chosen, self.scenarios)

    @property
    def to_train_on(self) -> list[Any]:
        return [scenario for scenario in self.scenarios if scenario.split == "train"]

    def require(self, *, train: bool, dry_run: bool) -> None:
        """Raise BadInput if a check fails. A dry run prints all of them."""
        checks: list[Check] = [("data", self._data)]
        if train:
            require_scoring(self.training, keys="train_agent" not in self.elsewhere)
            require_stop_rules(self.training)
            self.plugin.require(self.chosen, self.training)
            checks = [("data", self._data_to_train_on)]
        failed: list[RunCheck] = []
        for name, look in chain(checks, self._checks_of_task() if train else ()):
            try:
                check = RunCheck(name, True, look())
            except BadInput as error:
                if not dry_run:
                    raise
                check = RunCheck(name, False, str(error))
            if dry_run:
                say(str(check))
            elif name == "data":
                say(check.found)
            failed += [] if check.ok else [check]
        if dry_run:
            here = check_run(self.training, self.training.base_model, models=MODELS, runs=RUNS)
            failed += say_checks(check_run_elsewhere(self.training) if "train_agent" in self.elsewhere else here)
            say("")
        require_none(failed)

    def _checks_of_task(self) -> Iterator[Check]:
        """Yield the plug-in's checks, once the scenarios could be read."""
        try:
            scenarios = self.scenarios
        except BadInput:  # the check of the data has said so
            return
        yield from self.plugin.checks(self.chosen, self.training, scenarios, self.elsewhere)

    def _data(self) -> str:
        train = len(self.to_train_on)
        held_out = len(self.scenarios) - train
        if self.evaluates and not held_out:
            raise BadInput(f"no {self.plugin.unit} are held out: none is left to evaluate on")
        return f"{train} {self.plugin.unit} to train on, {held_out} held out"

    def _data_to_train_on(self) -> str:
        if not self.to_train_on:
            raise BadInput(f"all {self.plugin.unit} are held out: none is left to train on")
        if self.training.validates:
            hold_out(self.to_train_on, self.training.validation_questions)
        return self._data()

    def say_plan(self) -> None:
        kind = self.training.base_model, self.training.backend
        pace = earlier_pace(RUNS, *kind, task=self.config.task, decisions=bool(self.decisions))
        planned, turns = self._within_epochs(), self.plugin.max_turns(self.chosen, self.training)
        limits = {"max_turns": turns, "max_tokens": self.training.max_tokens}
        for line in plan_lines(plan_run(planned, **limits, pace=pace, decisions=self.decisions)):
            say(line)
        say("nothing was trained (--dry-run)")

    def _within_epochs(self) -> TrainingConfig:
        """Return the settings with the steps that the trainer takes: those of `epochs`, if they are fewer than `max_steps`."""
        training = self.training
        if training.epochs is None:
            return training
        asked = len(self.to_train_on) - (training.validation_questions if training.validates else 0)
        steps = training.epochs * math.ceil(asked / training.groups_per_step)
        return training.model_copy(update={"max_steps": min(steps, training.max_steps), "epochs": None})

    def train(self, *, cache: bool, key: str | None = None) -> Trained:
        """Train, resume an unfinished run of the same key, or reuse the finished one."""
        training = self.training
        if key is None:
            base = base_model_content(training.base_model, here="train_agent" not in self.elsewhere)
            nonce = "" if cache else datetime.now(UTC).isoformat()
            key = run_key(self.plugin, training, self.chosen, self.identity, base, nonce)
        return train_by(
            task_training_pipeline, training, self._of_task(), key, config=self.config, model=self.model, cache=cache
        )

    def evaluate(self, trained: Trained, *, cache: bool, summary: Path | None, base_model: str | None = None) -> None:
        """Evaluate a training beside the version in production, and print the closing table."""
        # The steps depend on the code of this project. A plug-in may lie outside, with its judge.
        identity = digest_of([self.plugin.evaluation_identity(self.chosen, self.scenarios), task_code(self.plugin)])
        arguments = {**self._of_task(), "identity": identity, "title": self.plugin.title, "base_model": base_model}
        metrics = evaluate_by(
            task_evaluation_pipeline,
            arguments,
            trained,
            config=self.config,
            model=self.model,
            cache=cache,
            summary=summary,
        )
        for name, row in {**metrics["policies"], **metrics["baselines"]}.items():
            judged = {
                kind: found["accuracy"] for kind, found in row["by_kind"].items() if found["accuracy"] is not None
            }
            kinds = [f"{kind} {accuracy:.0%}" for kind, accuracy in judged.items()]
            ended = [f"{outcome.replace('_', ' ')} {count}" for outcome, count in row["outcomes"].items()]
            say(f"{name}: {', '.join(kinds)} correct; {', '.join(ended)}" if kinds else f"{name}: {', '.join(ended)}")

    def schedule(self, cron: str) -> None:
        """Train and evaluate at the times of `cron`."""
        parts = {"training": self.training, "evaluation": self.config.evaluation, **self._of_task()}
        parts |= {"title": self.plugin.title, "model": self.model}
        schedule_pipeline(task_retraining_pipeline, parts, self.config, cron, model=self.model)

    def _of_task(self) -> dict[str, Any]:
        return {"task": self.config.task, "settings": self.chosen.model_dump(mode="json")}
