"""mails -> create_database -> write_questions: questions for mail that has none."""

from __future__ import annotations

from zenml import pipeline
from zenml.enums import ExecutionMode

from configs.schema import DataConfig, QuestionConfig
from steps.data.create_database import create_database
from steps.data.write_questions import write_questions


# Fail fast, so that the error of a step is raised, not a generic one.
@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def question_writing_pipeline(
    config: QuestionConfig, data: DataConfig, source_version: str, read_chars: int, fresh: str
) -> None:
    database, _ = create_database(config=data, source_version=source_version)
    write_questions(
        config=config,
        database=database,
        read_chars=read_chars,
        max_messages=data.max_messages,
        seed=data.data_seed,
        fresh=fresh,
    )
