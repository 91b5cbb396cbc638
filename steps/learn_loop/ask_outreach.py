"""Have e-mails written to held-out prospects, before and after training."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from zenml import step
from zenml.config.cache_policy import CachePolicy

from agent.metrics import MOST_ERRORS, Prediction, too_many_errors
from configs.schema import LearnLoopConfig
from materializers.json_lines import JsonLinesMaterializer
from reports.console import say
from steps.artifact_names import PREDICTIONS
from steps.evaluation.journal import open_journal
from steps.evaluation.rows import Rows, ask_rows, predicting
from steps.learn_loop.world import graph_of, open_task
from steps.project import source_files
from tasks.outreach.evaluation import BASELINE, GRAPH_ONLY, GRPO_ONLY, LEARNT
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.scenarios import Scenario
from training.backends.serving import BASE
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.task import Policy

_CODE = ("tasks/outreach", "training", "steps/learn_loop")
_SAMPLING = {"temperature", "top_p", "min_p", "max_tokens"}


# Named like the step of the other tasks, so that `step_settings` mean the same for every task.
@step(
    name="run_inference",
    output_materializers={PREDICTIONS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files(*_CODE)),
)
def ask_outreach(
    config: LearnLoopConfig,
    base: dict[str, str],
    graph: str,
    scenarios: list[Scenario],
    checkpoint: Checkpoint,
    warm_start: Checkpoint,
    node_scores: dict[str, Any],
) -> Annotated[list[Prediction], PREDICTIONS]:
    """Return an e-mail to every held-out prospect for each row of the table, sampled as in training.

    The e-mails of an earlier, interrupted run of the same evaluation are not written again.
    """
    known = graph_of(graph)
    learnt = NodeScores.model_validate(node_scores["posterior"])
    fresh = NodeScores.fresh(known, learnt.decay)
    # Without demonstrations there is no adapter before the first step, and its checkpoint stands in.
    untouched = warm_start.manifest.step > 0
    before = BASE if untouched else "warm_start"
    written_by = {
        BASELINE: (before, fresh),
        GRAPH_ONLY: (before, learnt),
        GRPO_ONLY: ("trained", fresh),
        LEARNT: ("trained", learnt),
    }

    async def write(rows: Rows, base_url: str) -> list[Prediction]:
        predictions = []
        for row, (model, scores) in written_by.items():
            task = open_task(config, known, scenarios, scores)
            policy = Policy(base_url=base_url, model=model, **config.model_dump(include=_SAMPLING))
            predict = predicting(row, task.described, partial(task.attempt, policy))
            predictions += await rows.of(row, task.test_scenarios(), predict)
        return predictions

    adapters = {"trained": checkpoint.path} | ({} if untouched else {before: warm_start.path})
    journal = open_journal(config, code=_CODE, base=base["content"])
    predictions = ask_rows(write, checkpoint, base, adapters, journal, output=PREDICTIONS)
    for row in written_by:
        _require_fair_sample(row, [prediction for prediction in predictions if prediction.policy == row])
    return predictions


def _require_fair_sample(row: str, predictions: list[Prediction]) -> None:
    """Warn of e-mails that failed. Raises BadInput if more than `MOST_ERRORS` of them did: the rest is no fair sample."""
    if problem := too_many_errors(predictions):
        raise BadInput(f"{row}: {problem}, more than {MOST_ERRORS:.0%}; the same command tries these again")
    if failed := [prediction.scenario_id for prediction in predictions if prediction.error is not None]:
        say(f"{row}: left out, because every attempt failed: {', '.join(failed)}", alarm=True)
