"""`--pipeline data`: prepare mails and questions.

Commands import a pipeline where they run it: ART, transformers and PEFT take eight seconds to import.
"""

from __future__ import annotations

import os
from uuid import UUID

from pydantic import BaseModel
from zenml.client import Client

from commands.pipeline_run import output, run_pipeline, say_if_cached
from configs.config import Config
from configs.schema import DataConfig
from environment.errors import Unreachable
from reports.console import say
from steps.artifact_names import MAIL_DATABASE, MAIL_REPORT, SCENARIOS
from steps.data.sources import current_source_version, prepared_version, source_version
from steps.project import OUTPUTS
from training.errors import BadInput
from training.files import write_text


class DataRun(BaseModel):
    """Artifact versions of a data preparation run."""

    database: UUID
    scenarios: UUID


def run_data(config: Config, *, cache: bool) -> DataRun:
    """Prepare mails and questions. Reuses earlier results while source, settings and code are unchanged."""
    from pipelines.data_preparation import data_preparation_pipeline

    data = config.data
    run = run_pipeline(
        data_preparation_pipeline,
        {"config": data, "source_version": version_of_source(data)},
        enable_cache=cache,
        settings=config.settings,
    )
    database = output(run, "create_database", MAIL_DATABASE)
    scenarios = output(run, "load_scenarios", SCENARIOS)
    say_if_cached(run, "data")
    kept, counts = database.run_metadata, scenarios.run_metadata
    say(
        f"data: {kept['kept']:,} mails in {kept['inboxes']:,} inboxes (of {kept['read']:,} read), "
        f"{counts['train']} questions to train on, {counts['test']} held out"
    )
    if any(counts["unlabelled"].values()):
        unlabelled = counts["unlabelled"]
        say(f"  of these without a reference answer: {unlabelled['train']} to train on, {unlabelled['test']} held out")
    if not_read := kept.get("attachments_not_read"):
        shown = ", ".join(f"{count:,} {why} ({kept['such_as'][why]})" for why, count in not_read.items())
        say(f"  attachments not read: {shown}")
    for what, dropped in (("mails", kept["dropped"]), ("questions", counts["dropped"])):
        if dropped:
            say(f"  {what} left out: " + ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()))
    if kept["dropped"]:
        page = output(run, "create_database", MAIL_REPORT).load()
        report = write_text(OUTPUTS / "reports" / f"mails-{str(database.id)[:8]}.html", page)
        say(f"  which mails and why: {os.path.relpath(report)}")
    return DataRun(database=database.id, scenarios=scenarios.id)


def version_of_source(data: DataConfig) -> str:
    """Return the current version of the source.

    If the Hub or the mail server does not answer, return that of the latest data with these settings, if any.
    """
    try:
        return current_source_version(data)
    except Unreachable as error:
        if prepared := prepared_version(data):
            say(f"{error}; this run uses the data that were prepared before")
            return prepared
        return source_version(data)  # reading the source reports the problem


def data_in_store(trained_on: dict[str, str], asked: str) -> DataRun:
    """Return the data of a checkpoint or run.

    Raises BadInput, which begins with `asked`, if the store no longer has it.
    """
    try:
        data = DataRun(database=UUID(trained_on[MAIL_DATABASE]), scenarios=UUID(trained_on[SCENARIOS]))
        Client().get_artifact_version(data.database)
        Client().get_artifact_version(data.scenarios)
    except KeyError:
        raise BadInput(f"{asked}: the data that it was trained on is not in this ZenML store") from None
    return data
