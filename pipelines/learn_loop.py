"""prepare_outreach and setup_art_model -> learn_outreach -> run_inference -> evaluate_outreach."""

from __future__ import annotations

from zenml import pipeline
from zenml.enums import ExecutionMode

from configs.schema import LearnLoopConfig
from steps.learn_loop.ask_outreach import ask_outreach
from steps.learn_loop.evaluate_outreach import evaluate_outreach
from steps.learn_loop.learn_outreach import learn_outreach
from steps.learn_loop.prepare_outreach import prepare_outreach
from steps.training.setup_art_model import setup_art_model


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def learn_loop_pipeline(config: LearnLoopConfig, run_id: str, source_version: str) -> None:
    graph, scenarios = prepare_outreach(config=config, source_version=source_version)
    base = setup_art_model(base_model=config.base_model)
    world = {"config": config, "graph": graph, "scenarios": scenarios}
    checkpoint, warm_start, iterations, node_scores, emails = learn_outreach(**world, run_id=run_id, base=base)
    predictions = ask_outreach(
        **world, base=base, checkpoint=checkpoint, warm_start=warm_start, node_scores=node_scores
    )
    evaluate_outreach(
        **world, run_id=run_id, predictions=predictions, iterations=iterations, node_scores=node_scores, emails=emails
    )
