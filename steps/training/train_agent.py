"""Train the policy of the agent: warm start and GRPO."""

from __future__ import annotations

from typing import Annotated, Any

from zenml import get_step_context, step
from zenml.types import HTMLString

from agent.judges.settings import open_judge
from agent.task import EmailSearchTask
from configs.schema import TrainingConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.checkpoint import CheckpointMaterializer
from steps.artifact_names import CHECKPOINT, HISTORY, MAIL_DATABASE, SCENARIOS, TRAINING_CURVE, WARM_START
from steps.project import training_code
from steps.training.labels import require_labels
from steps.training.training_run import Begun
from training.checkpoint import Checkpoint


@step(output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer})
def train_agent(
    config: TrainingConfig,
    run_key: str | None,
    base: dict[str, str],
    database: MailDatabase,
    scenarios: list[Scenario],
    start: str | None = None,
) -> tuple[
    Annotated[Checkpoint, CHECKPOINT],
    Annotated[Checkpoint, WARM_START],
    Annotated[list[dict[str, Any]], HISTORY],
    Annotated[HTMLString, TRAINING_CURVE],
]:
    """Train on the train scenarios, or resume a killed run with the same configuration and data.

    The default of `run_key` is the name of the model version, a new one for each scheduled run. `start` is the id of
    the checkpoint that a new run continues from; without one it starts from the base model.

    The first output is the best validated checkpoint, or the last one without validation. The second is the checkpoint
    before the first GRPO step: the warm start, or the one continued from. Without either it equals the first output,
    whose step is above 0.
    """
    begun = Begun(config, run_key, base, start)
    require_labels(config, scenarios)
    config.require_judge()
    task = mail_task(config, database, scenarios)
    inputs = get_step_context().step_run.inputs
    data = {name: inputs[key][0] for name, key in ((MAIL_DATABASE, "database"), (SCENARIOS, "scenarios"))}
    data_seed = data[SCENARIOS].run_metadata.get("data_seed")
    experiment = begun.experiment(
        code=training_code(),
        data={name: str(version.id) for name, version in data.items()},
        seeds={"data_seed": data_seed} if isinstance(data_seed, int) else {},
    )
    trained, warm_start, history, page = begun.train(task, experiment)
    return trained, warm_start, history, page  # ZenML wants to see a tuple


def mail_task(config: TrainingConfig, database: MailDatabase, scenarios: list[Scenario]) -> EmailSearchTask:
    """Return the task that the configuration describes."""
    return EmailSearchTask(
        database,
        scenarios,
        open_judge(config),
        config,
        weights=config.verifiable_weights,
        show=config,
        seed=config.seed,
    )
