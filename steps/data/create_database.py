"""mails -> one searchable database."""

from __future__ import annotations

from typing import Annotated

from zenml import get_step_context, step
from zenml.config.cache_policy import CachePolicy

from configs.schema import DataConfig
from environment.email_db import MailDatabase, build_database
from environment.email_statistics import database_statistics
from materializers.mail_database import MailDatabaseMaterializer
from reports.console import counter
from steps.artifact_names import MAIL_DATABASE
from steps.data.sources import open_mails
from steps.project import DATA, code_of


@step(
    output_materializers={MAIL_DATABASE: MailDatabaseMaterializer},
    cache_policy=CachePolicy(file_dependencies=code_of("environment", "materializers", "steps/data")),
)
def create_database(config: DataConfig, source_version: str) -> Annotated[MailDatabase, MAIL_DATABASE]:
    """Streams the mails into SQLite with full-text search. `source_version` is what the mails' source was when this ran."""
    path = DATA / "mail_database.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    with counter("mails read") as progress:
        report = build_database(
            open_mails(config),
            path,
            max_body_chars=config.max_body_chars,
            max_recipients=config.max_recipients,
            progress=progress,
        )
    facts = {
        **report.model_dump(),
        "source": config.emails,
        "source_version": source_version,
        "statistics": database_statistics(path).model_dump(mode="json"),
    }
    get_step_context().add_output_metadata(facts, output_name=MAIL_DATABASE)
    return MailDatabase(path)
