"""questions -> checked scenarios with their splits."""

from __future__ import annotations

from typing import Annotated

from zenml import get_step_context, step
from zenml.config.cache_policy import CachePolicy

from configs.schema import DataConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.json_lines import JsonLinesMaterializer
from steps.artifact_names import SCENARIOS
from steps.data.sources import open_scenarios
from steps.project import code_of


@step(
    output_materializers={SCENARIOS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=code_of("environment", "steps/data")),
)
def load_scenarios(
    config: DataConfig, database: MailDatabase, source_version: str
) -> Annotated[list[Scenario], SCENARIOS]:
    """Keeps the questions that can be answered from this database, and records why the others were dropped."""
    report = open_scenarios(config, database)
    splits = [scenario.split for scenario in report.scenarios]
    get_step_context().add_output_metadata(
        {
            "train": splits.count("train"),
            "test": splits.count("test"),
            "dropped": report.dropped,
            "source_version": source_version,
        },
        output_name=SCENARIOS,
    )
    return report.scenarios
