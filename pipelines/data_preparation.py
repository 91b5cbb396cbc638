"""mails -> create_database -> load_scenarios. Cached: runs again when the source, the settings or the code changed."""

from __future__ import annotations

from zenml import pipeline
from zenml.enums import ExecutionMode

from configs.schema import DataConfig
from steps.data.create_database import create_database
from steps.data.load_scenarios import load_scenarios


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def data_preparation_pipeline(config: DataConfig, source_version: str) -> None:
    database, _ = create_database(config=config, source_version=source_version)
    load_scenarios(config=config, database=database, source_version=source_version)
