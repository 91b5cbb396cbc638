"""mails -> searchable database, and a report of dropped mails."""

from __future__ import annotations

import os
import shutil
import weakref
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

from zenml import get_step_context, step
from zenml.config.cache_policy import CachePolicy
from zenml.types import HTMLString

from configs.schema import DataConfig
from environment.email_db import MailDatabase, build_database
from environment.email_statistics import database_statistics
from environment.errors import BadMail
from environment.scratch_file import ScratchFile
from environment.sources.attachment_text import AttachmentTexts
from environment.sources.imap import ImapMails
from materializers.mail_database import MailDatabaseMaterializer
from reports.console import counter
from reports.mail import mail_html
from steps.artifact_names import MAIL_DATABASE, MAIL_REPORT
from steps.data.sources import open_mails, owner_of
from steps.data.sources import source_version as local_source_version
from steps.project import DATA, source_files


@step(
    output_materializers={MAIL_DATABASE: MailDatabaseMaterializer},
    cache_policy=CachePolicy(
        file_dependencies=[
            *source_files("environment", "materializers", "steps/data"),
            "reports/mail.py",
            "reports/page.py",
        ]
    ),
)
def create_database(
    config: DataConfig, source_version: str
) -> tuple[Annotated[MailDatabase, MAIL_DATABASE], Annotated[HTMLString, MAIL_REPORT]]:
    """Stream the mails into SQLite with full-text search.

    `source_version` is a cache key: the version of the source.
    """
    local_version = local_source_version(config)
    mails = open_mails(config)
    with ExitStack() as cleanup:
        scratch = _scratch_file()
        cleanup.callback(scratch.remove)
        if isinstance(mails, ImapMails):
            with counter("mails fetched") as progress:
                mails.fetch(progress)
        with counter("mails read") as progress, _texts(config) as texts:
            report = build_database(
                texts.added_to(mails) if texts else mails,
                scratch.path,
                owner=owner_of(config),
                max_body_chars=config.max_body_chars,
                progress=progress,
            )
        database = MailDatabase(scratch.path)
        weakref.finalize(database, cleanup.pop_all().close)  # ZenML stores it when this step has returned
    if not report.kept:
        why = ", ".join(f"{count:,} {reason}" for reason, count in report.dropped.items()) or "it is empty"
        raise BadMail(f"none of the {report.read:,} mails or files of {config.emails} is a usable mail ({why})")
    _show_newest(database.path)
    statistics = database_statistics(database.path).model_dump(mode="json")
    facts = {
        **report.model_dump(exclude={"listed"}),
        "source": config.emails,
        "source_version": source_version,
        "local_version": local_version,
        "statistics": statistics,
    }
    if texts:
        facts |= {"attachments_read": texts.read, "attachments_not_read": {**texts.not_read}, "such_as": texts.first}
    get_step_context().add_output_metadata(facts, output_name=MAIL_DATABASE)
    return database, HTMLString(mail_html(report.model_dump(), statistics, config.emails))


def _scratch_file() -> ScratchFile:
    """Return a file of this run's own, because two runs may build at the same time."""
    try:
        return ScratchFile(DATA, ".mail_database")
    except OSError as error:
        raise BadMail(f"cannot write a mail database to {DATA}: {error.strerror or error}") from error


def _texts(config: DataConfig) -> AbstractContextManager[AttachmentTexts | None]:
    return AttachmentTexts() if config.attachment_text else nullcontext()


def _show_newest(path: Path) -> None:
    """Let `python -m environment.search_cli` find this database, without a second copy where the file system has links."""
    link = _scratch_file()
    try:
        os.link(path, link.path)
    except OSError:
        shutil.copyfile(path, link.path)
    os.replace(link.path, DATA / "mail_database.sqlite")
    link.remove()
