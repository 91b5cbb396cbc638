"""Train a policy on a task of `tasks/`."""

from __future__ import annotations

from typing import Annotated, Any

from zenml import step
from zenml.types import HTMLString

from configs.schema import TrainingConfig
from materializers.checkpoint import CheckpointMaterializer
from reports.console import say
from steps.artifact_names import CHECKPOINT, HISTORY, TRAINING_CURVE, WARM_START
from steps.interruption import run_cancellable
from steps.project import OUTPUTS, task_code
from steps.training.training_run import Begun
from tasks import load_plugin, recorded_settings
from training.checkpoint import Checkpoint


# Named like the step of the e-mail agent, so that `step_settings` mean the same for every task.
@step(name="train_agent", output_materializers={CHECKPOINT: CheckpointMaterializer, WARM_START: CheckpointMaterializer})
def train_task(
    config: TrainingConfig,
    task: str,
    settings: dict[str, Any],
    run_key: str | None,
    base: dict[str, str],
    start: str | None = None,
) -> tuple[
    Annotated[Checkpoint, CHECKPOINT],
    Annotated[Checkpoint, WARM_START],
    Annotated[list[dict[str, Any]], HISTORY],
    Annotated[HTMLString, TRAINING_CURVE],
]:
    """Train on the task's scenarios, or resume a killed run of the same settings, data and code.

    Outputs, `start` and the default of `run_key` are those of `train_agent`.
    """
    plugin = load_plugin(task)
    chosen = plugin.settings.model_validate(settings)
    begun = Begun(config, run_key, base, start)
    experiment = begun.experiment(
        code=task_code(plugin),
        data=plugin.described(chosen),
        seeds={name: value for name, value in settings.items() if name.endswith("seed")},
        of_task=recorded_settings(task, settings),
        sources=plugin.sources(chosen),
    )
    with plugin.opened(chosen, begun.config.model_dump(), say) as opened:
        if found := run_cancellable(opened.prepare(OUTPUTS)):
            say(found)
        trained, warm_start, history, page = begun.train(opened, experiment)
    return trained, warm_start, history, page  # ZenML wants to see a tuple
