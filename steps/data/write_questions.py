"""mails -> questions about them, written by a language model."""

from __future__ import annotations

from typing import Annotated

from zenml import get_step_context, step
from zenml.config.cache_policy import CachePolicy

from agent.question_writing.author import require_model
from agent.question_writing.writing import WritingReport
from agent.question_writing.writing import write_questions as write
from configs.schema import QuestionConfig
from environment.email_db import MailDatabase
from environment.sources.parquet import Question
from materializers.json_lines import JsonLinesMaterializer
from reports.console import counter, say
from steps.artifact_names import QUESTIONS
from steps.interruption import signals_cancel
from steps.project import QUESTION_REPLIES, source_files

__all__ = ["require_model", "write_questions"]

_BATCHES_PER_LINE = 10


@step(
    output_materializers={QUESTIONS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files("agent", "environment")),
)
def write_questions(
    config: QuestionConfig, database: MailDatabase, read_chars: int, max_messages: int, seed: int, fresh: str
) -> Annotated[list[Question], QUESTIONS]:
    """Have the model write questions. Resumes a killed run of the same model, unless `fresh` is not empty."""
    with signals_cancel(), counter("questions") as bar:

        def progress(report: WritingReport, wanted: int) -> None:
            bar(len(report.questions), wanted, description=f"questions ({report.spent})")
            batches = report.batches + report.unusable
            if batches % _BATCHES_PER_LINE == 0:
                say(
                    f"{len(report.questions):,} of {wanted:,} questions from {batches:,} batches of mails ({report.spent})"
                )

        report = write(
            database,
            config,
            read_chars=read_chars,
            max_messages=max_messages,
            seed=seed,
            journal_folder=QUESTION_REPLIES,
            fresh=fresh,
            progress=progress,
        )
    facts = report.model_dump(exclude={"questions", "spent"})
    spent = {name: value for name, value in report.spent.model_dump().items() if value is not None}
    get_step_context().add_output_metadata({**facts, **spent, "spent": str(report.spent)}, output_name=QUESTIONS)
    return report.questions
