"""Train and evaluate a task of `tasks/`, now or on a schedule.

setup_art_model -> train_agent; load_trained_model -> run_inference, ask_production -> compute_metrics with the gate.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from zenml import pipeline
from zenml.client import Client
from zenml.enums import ExecutionMode

from configs.schema import EvaluationConfig, TrainingConfig
from training.settings import FROM_PRODUCTION


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def task_training_pipeline(config: TrainingConfig, task: str, settings: dict[str, Any], run_key: str) -> None:
    from steps.training.setup_art_model import setup_art_model
    from steps.training.train_task import train_task

    base = setup_art_model(base_model=config.base_model)
    train_task(config=config, task=task, settings=settings, run_key=run_key, base=base, start=config.continue_from)


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def task_evaluation_pipeline(
    config: EvaluationConfig,
    task: str,
    settings: dict[str, Any],
    identity: str,
    title: str,
    checkpoint: UUID,
    warm_start: UUID | None = None,
    base_model: str | None = None,
    production: str | None = None,
) -> None:
    from steps.evaluation.ask_task import ask_task, ask_task_production
    from steps.evaluation.compute_metrics import compute_metrics
    from steps.evaluation.load_trained_model import load_trained_model

    client = Client()
    trained = client.get_artifact_version(checkpoint)
    asked = {"config": config.without_gate(), "task": task, "settings": settings, "identity": identity}
    predictions = ask_task(
        **asked,
        base=load_trained_model(checkpoint=trained, base_model=base_model),
        checkpoint=trained,
        warm_start=client.get_artifact_version(warm_start) if warm_start else None,
    )
    in_production = None
    if production is not None:
        in_production = ask_task_production(**asked, production=production)
    compute_metrics(
        config=config,
        predictions=predictions,
        checkpoint=trained,
        production=in_production,
        title=title,
        compared_with=production or "",
    )


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def task_retraining_pipeline(
    training: TrainingConfig, evaluation: EvaluationConfig, task: str, settings: dict[str, Any], title: str, model: str
) -> None:
    """What `pipelines.retraining` is for mail: each run reads the scenarios and looks up production again."""
    from steps.evaluation.ask_task import ask_task, ask_task_production
    from steps.evaluation.compute_metrics import compute_metrics
    from steps.evaluation.find_production import find_production
    from steps.training.setup_art_model import setup_art_model
    from steps.training.train_task import train_task

    base = setup_art_model(base_model=training.base_model)
    start = training.continue_from
    if start == FROM_PRODUCTION:
        start = find_production(model=model, id="find_start")
    of_task = {"task": task, "settings": settings}
    # The scenarios may have changed, which only a run finds out.
    checkpoint, warm_start, _, _ = train_task.with_options(enable_cache=False)(
        config=training, run_key=None, base=base, start=start, **of_task
    )
    asked = {"config": evaluation.without_gate(), "identity": "", **of_task}
    predictions = ask_task.with_options(enable_cache=False)(
        base=base, checkpoint=checkpoint, warm_start=warm_start, **asked
    )
    # Looked up after the training, because production may change during its hours.
    production = find_production(model=model, after=["train_agent"])
    answers = ask_task_production.with_options(enable_cache=False)(production=production, **asked)
    compute_metrics.with_options(enable_cache=False)(
        config=evaluation,
        predictions=predictions,
        checkpoint=checkpoint,
        production=answers,
        title=title,
        compared_with=production,
    )
