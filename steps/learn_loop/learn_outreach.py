"""Warm start on the format, then iterations of writing, feedback, a GRPO step and new node scores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from zenml import get_step_context, log_metadata, step
from zenml.config.cache_policy import CachePolicy

from configs.schema import LearnLoopConfig
from materializers.checkpoint import CheckpointMaterializer
from reports.console import say
from steps.artifact_names import CHECKPOINT, EMAILS, ITERATIONS, KNOWLEDGE_GRAPH, NODE_SCORES, PROSPECTS, WARM_START
from steps.interruption import run_cancellable
from steps.learn_loop.world import EVENTS, graph_of, open_task, sources_of
from steps.project import LEARN_LOOPS, MODELS, git_revision, learn_loop_code, source_files
from steps.published_model import base_model_files, manifest_fields
from steps.training.published_run import LOOPS_FOLDER, open_console
from tasks.outreach.events import EventStore
from tasks.outreach.loop import LearnLoop
from tasks.outreach.scenarios import Scenario
from tasks.outreach.webhook import Outbox
from training.backends.serverless import remote_base_model
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.experiment import Experiment
from training.history import checkpoint_folder
from training.preflight import require_ready
from training.traces import traced
from training.wandb_log import with_wandb


@step(
    output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files("tasks/outreach", "training", "steps/learn_loop")),
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

    The checkpoint is that of the last iteration, because choosing the best one would need more e-mails. `NODE_SCORES`
    holds the scores after it, their posterior and the scores of the top-half rule. `EMAILS` holds e-mails to the same
    prospects before and after.
    """
    files = base_model_files(base["source"], base["checksum"], progress=say)
    trained_base = str(files.path) if config.backend != "serverless" else remote_base_model(base["source"])
    folder = LEARN_LOOPS / run_id
    require_ready(config, trained_base, models=MODELS, runs=LEARN_LOOPS)
    task = open_task(config, graph_of(graph), scenarios, explore=True)
    console = open_console(config.max_steps, folder, LOOPS_FOLDER)
    inputs = get_step_context().step_run.inputs
    experiment = Experiment(
        name=config.experiment or run_id,
        run=run_id,
        config=config.model_dump(mode="json"),
        git_revision=git_revision(),
        code=learn_loop_code(),
        data={KNOWLEDGE_GRAPH: str(inputs["graph"][0].id), PROSPECTS: str(inputs["scenarios"][0].id)},
        sources=sources_of(config),
        seeds={"seed": config.seed, "graph_seed": config.graph_seed},
        base_model=files.id,
        base_model_checksum=files.checksum,
        base_model_content=base["content"],
        created=datetime.now(UTC),
    ).resuming(folder)
    experiment.save(folder)
    outbox = Outbox(folder / "webhook", config.webhook_url, private=config.webhook_private)
    with console, with_wandb(console, experiment, folder) as logged, traced(logged, experiment) as progress, outbox:
        loop = LearnLoop(folder, task, EventStore(EVENTS), outbox, progress, config.max_steps)
        try:
            run = run_cancellable(loop.run(base_model=trained_base, settings=config, max_tokens=config.max_tokens))
        except BaseException as error:
            stopped = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
            finished = loop.metrics()
            loop.save_state(stopped, finished[-1].iteration if finished else 0, f"{type(error).__name__}: {error}")
            raise
    last = run.history[-1]
    adapter = checkpoint_folder(run.folder, last.checkpoint_step)
    if not last.checkpoint_step:
        raise BadInput(f"nothing was learnt ({run.stopped}): set demonstrations above 0 or raise rollouts_per_group")
    if undelivered := outbox.undelivered():
        say(f"webhook: {len(undelivered)} notices are not delivered yet: the same command tries again", alarm=True)
    described = manifest_fields(files, base["source"], experiment)
    alerts = tuple(sorted({alert.name for row in run.history for alert in row.alerts}))
    trained = Checkpoint.from_adapter(adapter, name=run_id, step=last.step, alerts=alerts, **described)
    warm_start = trained
    if run.warm_start:
        warm_start = Checkpoint.from_adapter(run.warm_start, name=f"{run_id}-warm-start", step=0, **described)
    iterations = [metrics.model_dump() for metrics in loop.metrics()]
    scores = loop.scores_after(last.step)
    log_metadata(
        {"learn_loop": {"run": run_id, "iterations": last.step, "folder": str(folder), "stopped": run.stopped}}
    )
    compared = loop.compared_emails(last.step)
    emails = {
        "before": compared.first,
        "after": last.step,
        "baseline": [email.model_dump() for email in compared.before],
        "final": [email.model_dump() for email in compared.after],
    }
    ranked = {
        "posterior": scores.model_dump(),
        "after": scores.scores,
        "top_half": loop.top_half_after(last.step).scores,
    }
    return trained, warm_start, iterations, ranked, emails
