"""Train and evaluate the office agent of `tasks.workbench`."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from zenml import step
from zenml.types import HTMLString

from agent.metrics import Prediction
from configs.schema import EvaluationConfig, TrainingConfig, WorkbenchConfig
from materializers.checkpoint import CheckpointMaterializer
from materializers.json_lines import JsonLinesMaterializer
from reports.console import counter, say
from steps.artifact_names import CHECKPOINT, HISTORY, PREDICTIONS, TRAINING_CURVE, WARM_START
from steps.caching import keep_errors_out_of_cache
from steps.evaluation.run_inference import adapters_to_ask, question_limit
from steps.interruption import run_cancellable
from steps.project import MODELS, RUNS, git_revision, workbench_code
from steps.published_model import base_model_files
from steps.training.outputs import outputs_of
from steps.training.published_run import experiments_elsewhere, open_console
from tasks.workbench.episode import Episode, Limits
from tasks.workbench.scenarios import WorkbenchScenario, load_office, published_calls
from tasks.workbench.task import WorkbenchTask
from training.backends.serving import open_policy_server
from training.checkpoint import Checkpoint
from training.experiment import Experiment
from training.preflight import require_ready
from training.scoring import scoring_sources
from training.session import run_training
from training.settings import TrainerSettings
from training.task import Policy
from training.traces import traced
from training.wandb_log import with_wandb

ATTEMPTS = 3
"""Maximum attempts at a task when a server fails."""


@step(output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer})
def train_workbench_agent(
    config: TrainingConfig, office: WorkbenchConfig, run_key: str, base: dict[str, str]
) -> tuple[
    Annotated[Checkpoint, CHECKPOINT],
    Annotated[Checkpoint, WARM_START],
    Annotated[list[dict[str, Any]], HISTORY],
    Annotated[HTMLString, TRAINING_CURVE],
]:
    """Train on the tasks of the train templates, or resume a killed run of the same settings, data and code."""
    files = base_model_files(base["source"], base["checksum"], progress=say)
    settings = TrainerSettings.model_validate(config.model_dump(include=set(TrainerSettings.model_fields)))
    require_ready(settings, str(files.path), models=MODELS, runs=RUNS)
    run_folder = RUNS / f"{run_key}-{base['checksum'][:8]}"
    experiment = Experiment(
        name=config.experiment or run_key,
        run=run_key,
        config={**config.model_dump(mode="json"), **office.model_dump(mode="json"), "task": WorkbenchTask.name},
        git_revision=git_revision(),
        code=workbench_code(),
        data={"workbench": f"{office.folder}, template_seed {office.template_seed}"},
        sources=scoring_sources(config),
        seeds={"seed": config.seed, "template_seed": office.template_seed},
        base_model=files.id,
        base_model_checksum=files.checksum,
        base_model_content=base["content"],
        created=datetime.now(UTC),
    )
    task = WorkbenchTask(*load_office(office), Limits.model_validate(config.model_dump()), config.seed)
    with open_console(settings.max_steps, run_folder) as console:
        experiment = experiment.resuming(run_folder, experiments_elsewhere())
        experiment.save(run_folder)
        with with_wandb(console, experiment, run_folder) as logged, traced(logged, experiment) as progress:
            run = run_cancellable(
                run_training(
                    task,
                    base_model=str(files.path),
                    settings=settings,
                    max_tokens=config.max_tokens,
                    run_folder=run_folder,
                    progress=progress,
                )
            )
    trained, warm_start, history, page = outputs_of(run, experiment, run_folder, files, base["source"])
    return trained, warm_start, history, page  # ZenML wants to see a tuple


@step(output_materializers={PREDICTIONS: JsonLinesMaterializer})
def evaluate_workbench_agent(
    config: EvaluationConfig,
    office: WorkbenchConfig,
    content: str,
    base: dict[str, str],
    checkpoint: Checkpoint,
    warm_start: Checkpoint | None = None,
) -> Annotated[list[Prediction], PREDICTIONS]:
    """Return what the policies, a `baseline_model` and the published models do on the held-out tasks.

    `content` is the digest of code and data, a part of the cache key.
    """
    trained_with = checkpoint.manifest.config
    files = base_model_files(base["source"], base["checksum"], progress=say)
    adapters = adapters_to_ask(checkpoint, warm_start)
    tables, scenarios = load_office(office)
    task = WorkbenchTask(tables, scenarios, Limits.model_validate(trained_with))
    held_out = task.test_scenarios()
    random.Random(0).shuffle(held_out)
    held_out = held_out[: config.eval_limit]
    predictions = _published(task, held_out)
    slots = asyncio.Semaphore(trained_with["max_concurrent"])

    async def ask(base_url: str) -> None:
        for name in ("base", *adapters):
            policy = Policy(base_url=base_url, model=name, temperature=0.0, max_tokens=task.limits.max_tokens)
            asked = held_out[: question_limit(config, name, adapters)]
            predictions.extend(await _row(task, name, asked, slots, partial(task.run, policy)))
        if config.baseline_model is not None:
            hosted = Policy(
                base_url=config.baseline_api_base or "https://api.openai.com/v1",
                model=config.baseline_model.removeprefix("openai/"),
                api_key=os.environ.get("OPENAI_API_KEY", "none"),
                temperature=0.0,
                max_tokens=1024,
            )
            name = config.baseline_model
            predictions.extend(await _row(task, name, held_out, slots, partial(task.run, hosted, hosted=True)))

    with open_policy_server(files.path, adapters, trained_with) as server:
        run_cancellable(ask(server.base_url))
    if "trained" not in adapters:
        say("the best checkpoint of the run is the warm start: asked once, as both")
        same = [prediction for prediction in predictions if prediction.policy in adapters]
        predictions += [prediction.model_copy(update={"policy": "trained"}) for prediction in same]
    keep_errors_out_of_cache(predictions)
    return predictions


async def _row(
    task: WorkbenchTask,
    name: str,
    scenarios: list[WorkbenchScenario],
    slots: asyncio.Semaphore,
    play: Callable[[WorkbenchScenario], Awaitable[Episode]],
) -> list[Prediction]:
    """Return the prediction of a policy for each task. A failure of its server is an error, never a wrong outcome."""
    with counter(f"tasks done by {name.replace('_', ' ')}", total=len(scenarios)) as advance:

        async def one(scenario: WorkbenchScenario) -> Prediction:
            failure: Exception | None = None
            for _ in range(ATTEMPTS):
                try:
                    async with slots:
                        episode = await play(scenario)
                    break
                except Exception as error:  # any failure becomes this task's result, with its name and message
                    failure = error
            else:
                named = {"outcome": "error", "error": type(failure).__name__, "reason": str(failure)}
                return Prediction(**_known(name, scenario), **named)
            advance.one()
            verdict = task.verdict(episode)
            return Prediction(
                **_known(name, scenario),
                answer="\n".join(f"{call.name}({call.arguments})" for call in episode.calls) or None,
                correct=verdict.correct,
                turns=episode.turns,
                seconds=episode.seconds,
                outcome="side_effects" if verdict.side_effects else str(episode.outcome),
                transcript=[{"role": turn["role"], "content": turn["content"] or ""} for turn in episode.messages],
            )

        return list(await asyncio.gather(*map(one, scenarios)))


def _known(policy: str, scenario: WorkbenchScenario) -> dict[str, Any]:
    reference = "\n".join(f"{call.name}({call.arguments})" for call in scenario.reference) or "(no call)"
    named = {"policy": policy, "scenario_id": scenario.id, "kind": scenario.kind, "question": scenario.question}
    return {**named, "reference": reference}


def _published(task: WorkbenchTask, scenarios: list[WorkbenchScenario]) -> list[Prediction]:
    """Return the outcomes of the published calls, as far as the folder has some, and of making no call at all."""
    known = {scenario.question: scenario for scenario in scenarios}
    predictions = []
    published = published_calls(task.tables.folder)
    published["do_nothing"] = [({"query": scenario.question, "error": ""}, []) for scenario in scenarios]
    for model, runs in published.items():
        for record, calls in runs:
            if (scenario := known.get(record["query"])) is None:
                continue
            verdict = task.judges[scenario.id].judged(task.tables, calls, failed=bool(record["error"]))
            ended = "side_effects" if verdict.side_effects else "error_of_the_agent" if record["error"] else "finished"
            predictions.append(
                Prediction(**_known(model, scenario), correct=verdict.correct, turns=len(calls), outcome=ended)
            )
    return predictions
