"""mails -> create_database -> load_scenarios. Cached: runs again when the source, the settings or the code changed."""

from __future__ import annotations

from zenml import pipeline

from configs.schema import DataConfig
from steps.data.create_database import create_database
from steps.data.load_scenarios import load_scenarios


@pipeline
def data_preparation_pipeline(config: DataConfig, source_version: str) -> None:
    database = create_database(config=config, source_version=source_version)
    load_scenarios(config=config, database=database, source_version=source_version)
