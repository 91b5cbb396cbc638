"""questions -> checked scenarios with their splits."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from zenml import get_step_context, step
from zenml.config.cache_policy import CachePolicy

from configs.schema import DataConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.json_lines import JsonLinesMaterializer
from steps.artifact_names import SCENARIOS
from steps.data.sources import open_scenarios
from steps.project import source_files

LISTED_PER_REASON = 50


@step(
    output_materializers={SCENARIOS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files("environment", "materializers", "steps/data")),
)
def load_scenarios(
    config: DataConfig, database: MailDatabase, source_version: str
) -> Annotated[list[Scenario], SCENARIOS]:
    """Keep the questions that this database can answer, and record why the others were dropped."""
    report = open_scenarios(config, database)
    splits = {split: [s for s in report.scenarios if s.split == split] for split in ("train", "test")}
    get_step_context().add_output_metadata(
        {
            **{split: len(scenarios) for split, scenarios in splits.items()},
            "kinds": {split: dict(Counter(s.kind for s in scenarios)) for split, scenarios in splits.items()},
            "inboxes": {split: len({s.inbox_address for s in scenarios}) for split, scenarios in splits.items()},
            "source_mails": {
                split: dict(Counter(len(s.message_ids) for s in scenarios)) for split, scenarios in splits.items()
            },
            "unlabelled": {split: sum(not s.labelled for s in scenarios) for split, scenarios in splits.items()},
            "dropped": report.dropped,
            "dropped_ids": {reason: ids[:LISTED_PER_REASON] for reason, ids in report.dropped_ids.items()},
            "source_version": source_version,
            "data_seed": config.data_seed,
        },
        output_name=SCENARIOS,
    )
    return report.scenarios
