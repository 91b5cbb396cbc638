"""Ask the version in production the held-out questions, to compare a new version on the same questions."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from zenml import step
from zenml.config.cache_policy import CachePolicy

from agent.evaluation import Evaluation, select_questions
from agent.judges.settings import open_judge
from agent.metrics import Prediction
from configs.schema import EvaluationConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.json_lines import JsonLinesMaterializer
from steps.artifact_names import PRODUCTION_PREDICTIONS
from steps.evaluation.journal import CODE, open_journal
from steps.evaluation.rows import Rows, ask_rows
from steps.inference.service_lifecycle import episode_settings
from steps.model_registry import find_checkpoint
from steps.project import source_files
from training.task import Policy

PRODUCTION = "production"


# A separate step, so that answers stay cached until production, mails or questions change.
@step(
    output_materializers={PRODUCTION_PREDICTIONS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files(*CODE)),
)
def ask_production(
    config: EvaluationConfig, production: str, database: MailDatabase, scenarios: list[Scenario]
) -> Annotated[list[Prediction], PRODUCTION_PREDICTIONS]:
    """Return greedy answers of the version in production, with its own base model and limits.

    `production` is the id of its checkpoint; without one there are no answers.

    Raises:
        BadInput: its base model is unavailable, or differs from the one that it was trained from.
    """
    if not production:
        return []
    config.require_judge()
    questions = select_questions(scenarios, config.eval_limit)
    checkpoint = find_checkpoint(production).checkpoint
    manifest = checkpoint.manifest
    settings = episode_settings(manifest.config)
    base = {"source": manifest.base_model_source, "checksum": manifest.base_model_checksum}
    evaluation = Evaluation(database, open_judge(config), settings)

    async def ask(rows: Rows, base_url: str) -> list[Prediction]:
        policy = Policy(base_url=base_url, model=PRODUCTION, temperature=0.0, max_tokens=settings.max_tokens)
        return await rows.of(PRODUCTION, questions, partial(evaluation.policy, PRODUCTION, policy))

    journal = open_journal(config, production=production)
    return ask_rows(ask, checkpoint, base, {PRODUCTION: checkpoint.path}, journal, output=PRODUCTION_PREDICTIONS)
