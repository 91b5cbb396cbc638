"""Compare e-mails to held-out prospects before and after training, and build the page of the run."""

from __future__ import annotations

from typing import Annotated, Any

from zenml import get_step_context, step
from zenml.config.cache_policy import CachePolicy
from zenml.types import HTMLString

from agent.metrics import Prediction
from configs.schema import LearnLoopConfig
from reports.learn_loop import learn_loop_html
from steps.artifact_names import LEARN_LOOP_EVALUATION, LEARN_LOOP_PAGE
from steps.evaluation.journal import delete_journal
from steps.learn_loop.world import graph_of, open_task
from steps.project import source_files
from tasks.outreach.evaluation import BASELINE, LEARNT, about_scores, compare, estimate_by_scores
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.scenarios import Scenario
from tasks.outreach.written import WrittenEmail


@step(cache_policy=CachePolicy(file_dependencies=source_files("tasks/outreach", "steps/learn_loop", "reports")))
def evaluate_outreach(
    config: LearnLoopConfig,
    run_id: str,
    graph: str,
    scenarios: list[Scenario],
    predictions: list[Prediction],
    iterations: list[dict[str, Any]],
    node_scores: dict[str, Any],
    emails: dict[str, Any],
) -> tuple[Annotated[dict[str, Any], LEARN_LOOP_EVALUATION], Annotated[HTMLString, LEARN_LOOP_PAGE]]:
    """Return the figures of the held-out e-mails in `predictions`, and the page."""
    known = graph_of(graph)
    learnt = NodeScores.model_validate(node_scores["posterior"])
    fresh = NodeScores.fresh(known, learnt.decay)
    held_out: dict[str, list[WrittenEmail]] = {}
    for prediction in predictions:
        if prediction.error is None:
            held_out.setdefault(prediction.policy, []).append(WrittenEmail.model_validate(prediction.measured))
    task = open_task(config, known, scenarios, learnt)
    evaluation = compare(held_out, config.seed) | about_scores(task, node_scores["top_half"])
    estimate = estimate_by_scores(held_out, task)
    evaluation["by_scores"] = estimate and estimate.model_dump()
    page = learn_loop_html(
        run_id,
        iterations=iterations,
        evaluation=evaluation,
        nodes=[node.model_dump() for node in known.nodes],
        edges=[edge.model_dump() for edge in known.edges],
        scores={"before": fresh.scores, "after": node_scores["after"], "top_half": node_scores["top_half"]},
        emails={
            **emails,
            "held_out_before": [email.model_dump() for email in held_out[BASELINE]],
            "held_out_after": [email.model_dump() for email in held_out[LEARNT]],
        },
        prospects={scenario.id: scenario.prospect.described for scenario in scenarios},
        simulated=config.feedback == "simulated",
    )
    for stored in get_step_context().step_run.inputs["predictions"]:
        delete_journal(stored)
    return evaluation, HTMLString(page)
