"""Warm start on the format, then iterations of writing, feedback, a GRPO step and new node scores."""

from __future__ import annotations

from typing import Annotated, Any

from zenml import get_step_context, log_metadata, step
from zenml.config.cache_policy import CachePolicy

from configs.schema import LearnLoopConfig
from materializers.checkpoint import CheckpointMaterializer
from reports.console import say
from steps.artifact_names import CHECKPOINT, EMAILS, ITERATIONS, KNOWLEDGE_GRAPH, NODE_SCORES, PROSPECTS, WARM_START
from steps.interruption import run_cancellable
from steps.learn_loop.world import EVENTS, TASK, graph_of, open_task, sources_of
from steps.project import LEARN_LOOPS, learn_loop_code, source_files
from steps.training.published_run import LOOPS_FOLDER
from steps.training.training_run import Begun
from tasks.outreach.events import EventStore
from tasks.outreach.loop import LearnLoop
from tasks.outreach.scenarios import Scenario
from tasks.outreach.webhook import Outbox
from training.checkpoint import Checkpoint


@step(
    output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer},
    cache_policy=CachePolicy(
        file_dependencies=source_files("tasks/outreach", "training", "steps/learn_loop", "steps/training")
    ),
)
def learn_outreach(
    config: LearnLoopConfig, run_id: str, base: dict[str, str], graph: str, scenarios: list[Scenario]
) -> tuple[
    Annotated[Checkpoint, CHECKPOINT],
    Annotated[Checkpoint, WARM_START],
    Annotated[list[dict[str, Any]], ITERATIONS],
    Annotated[dict[str, Any], NODE_SCORES],
    Annotated[dict[str, Any], EMAILS],
]:
    """Run the learn loop, or resume a killed run with this id.

    The checkpoint is that of the last iteration. `NODE_SCORES` holds the scores after it, their posterior and the scores of
    the top-half rule. `EMAILS` holds e-mails to the same prospects before and after.
    """
    folder = LEARN_LOOPS / run_id
    begun = Begun(config, run_id, base, config.continue_from, LEARN_LOOPS)
    task = open_task(config, graph_of(graph), scenarios, explore=True)
    inputs = get_step_context().step_run.inputs
    experiment = begun.experiment(
        code=learn_loop_code(),
        data={KNOWLEDGE_GRAPH: str(inputs["graph"][0].id), PROSPECTS: str(inputs["scenarios"][0].id)},
        seeds={"graph_seed": config.graph_seed},
        of_task={"task": TASK},
        sources=sources_of(config),
    )
    outbox = Outbox(folder / "webhook", config.webhook_url, private=config.webhook_private)
    with begun.recorded(experiment, folder, LOOPS_FOLDER) as (experiment, progress), outbox:
        loop = LearnLoop(folder, task, EventStore(EVENTS), outbox, progress, config.max_steps)
        try:
            run = run_cancellable(loop.run(**begun.trained_with))
        except BaseException as error:
            stopped = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
            finished = loop.metrics()
            loop.save_state(stopped, finished[-1].iteration if finished else 0, f"{type(error).__name__}: {error}")
            raise
    last = run.checkpoint_of
    trained, warm_start = begun.checkpoints_of(run, experiment)
    if undelivered := outbox.undelivered():
        say(f"webhook: {len(undelivered)} notices are not delivered yet: the same command tries again", alarm=True)
    iterations = [metrics.model_dump() for metrics in loop.metrics()]
    scores = loop.scores_after(last)
    log_metadata({"learn_loop": {"run": run_id, "iterations": last, "folder": str(folder), "stopped": run.stopped}})
    compared = loop.compared_emails(last)
    emails = {
        "before": compared.first,
        "after": last,
        "baseline": [email.model_dump() for email in compared.before],
        "final": [email.model_dump() for email in compared.after],
    }
    ranked = {
        "posterior": scores.model_dump(),
        "after": scores.scores,
        "top_half": loop.top_half_after(last).scores,
    }
    return trained, warm_start, iterations, ranked, emails
