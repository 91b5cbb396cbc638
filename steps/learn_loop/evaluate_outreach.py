"""Compare e-mails to held-out prospects before and after training, and build the page of the run."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from zenml import step
from zenml.config.cache_policy import CachePolicy
from zenml.types import HTMLString

from configs.schema import LearnLoopConfig
from reports.console import say
from reports.learn_loop import learn_loop_html
from steps.artifact_names import LEARN_LOOP_EVALUATION, LEARN_LOOP_PAGE
from steps.interruption import run_cancellable
from steps.learn_loop.world import graph_of, open_task
from steps.project import source_files
from steps.published_model import base_model_files
from tasks.outreach.evaluation import (
    BASELINE,
    GRAPH_ONLY,
    GRPO_ONLY,
    LEARNT,
    about_scores,
    compare,
    estimate_by_scores,
    write_to_all,
)
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.scenarios import Scenario
from tasks.outreach.written import WrittenEmail
from training.backends.serving import BASE, open_policy_server
from training.checkpoint import Checkpoint
from training.task import Policy

_SAMPLING = {"temperature", "top_p", "min_p", "max_tokens"}


@step(
    cache_policy=CachePolicy(
        file_dependencies=source_files("tasks/outreach", "training", "steps/learn_loop", "reports")
    )
)
def evaluate_outreach(
    config: LearnLoopConfig,
    run_id: str,
    base: dict[str, str],
    graph: str,
    scenarios: list[Scenario],
    checkpoint: Checkpoint,
    warm_start: Checkpoint,
    iterations: list[dict[str, Any]],
    node_scores: dict[str, Any],
    emails: dict[str, Any],
) -> tuple[Annotated[dict[str, Any], LEARN_LOOP_EVALUATION], Annotated[HTMLString, LEARN_LOOP_PAGE]]:
    """Write an e-mail to every held-out prospect for each row of the table, sampled as in training."""
    known = graph_of(graph)
    learnt = NodeScores.model_validate(node_scores["posterior"])
    fresh = NodeScores.fresh(known, learnt.decay)
    files = base_model_files(base["source"], base["checksum"], progress=say)

    # Without demonstrations there is no adapter before the first step, and its checkpoint stands in.
    untouched = warm_start.manifest.step > 0
    before = BASE if untouched else "warm_start"

    async def write(base_url: str) -> dict[str, list[WrittenEmail]]:
        rows = {
            BASELINE: (before, fresh),
            GRAPH_ONLY: (before, learnt),
            GRPO_ONLY: ("trained", fresh),
            LEARNT: ("trained", learnt),
        }
        written = {}
        for row, (model, scores) in rows.items():
            policy = Policy(base_url=base_url, model=model, **config.model_dump(include=_SAMPLING))
            task = open_task(config, known, scenarios, scores)
            written[row] = await write_to_all(task, policy, config.max_concurrent, partial(say, alarm=True))
        return written

    adapters = {"trained": checkpoint.path} | ({} if untouched else {before: warm_start.path})
    with open_policy_server(files.path, adapters, checkpoint.manifest.config) as server:
        held_out = run_cancellable(write(server.base_url))
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
    return evaluation, HTMLString(page)
