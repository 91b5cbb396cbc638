"""Open the mails and questions of a data configuration, and compute the version of their source."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HTTPError  # the second is of the HTTP library of this version
from zenml.client import Client
from zenml.models import ArtifactVersionResponse

from configs.schema import SYNTHETIC, DataConfig
from environment.email_db import MailDatabase
from environment.errors import BadMail, Unreachable
from environment.feedback import rating_files, with_reviewed
from environment.models import DroppedMail, Email
from environment.scenarios import ScenarioReport, check_scenarios, load_scenarios
from environment.sources.detection import files_of, mail_source
from environment.sources.imap import ImapMails
from environment.sources.imap_url import ImapUrl, is_imap
from environment.sources.parquet import is_local, unreachable
from environment.sources.synthetic import SyntheticCompany, synthetic_company
from steps.artifact_names import MAIL_DATABASE
from steps.project import DATA

IMAP_COPIES = DATA / "imap"
_HUB_SECONDS = 30
_RETRY_SECONDS = 1


def company(config: DataConfig) -> SyntheticCompany:
    """Build the synthetic company of this configuration."""
    return synthetic_company(
        seed=config.data_seed,
        train_inboxes=config.synthetic_train_inboxes,
        test_inboxes=config.synthetic_test_inboxes,
        questions_per_inbox=config.synthetic_questions_per_inbox,
    )


def open_mails(config: DataConfig) -> Iterable[Email | DroppedMail]:
    """Return the mails of the configured source, and what cannot be read as mail. Those of an account have to be fetched."""
    if is_imap(config.emails):
        return ImapMails(config.emails, IMAP_COPIES)
    if config.emails == SYNTHETIC:
        return company(config).emails()
    mails = mail_source(config.emails)
    _require_connection(config.emails)
    return mails


def owner_of(config: DataConfig) -> str | None:
    """Return the address whose inbox has every mail of the source, if there is one."""
    user = ImapUrl.parse(config.emails).user if is_imap(config.emails) else ""
    return config.owner or (user if "@" in user else None)


def open_scenarios(config: DataConfig, database: MailDatabase) -> ScenarioReport:
    """Load questions and reviewed feedback of the configured source, checked against the database."""
    report = _questions(config, database)
    return with_reviewed(report, config.reviewed_feedback, database) if config.reviewed_feedback else report


def _questions(config: DataConfig, database: MailDatabase) -> ScenarioReport:
    if config.emails == SYNTHETIC:
        return check_scenarios(company(config).scenarios(), database)
    if not config.train_questions and not config.test_questions:
        return ScenarioReport(read=0, scenarios=[], dropped_ids={})  # mail to ask, not to train on
    for source in (config.train_questions, config.test_questions):
        if source:
            _require_connection(source)
    return load_scenarios(
        config.train_questions or "",
        config.test_questions,
        database,
        max_messages=config.max_messages,
        min_realism=config.min_realism,
        train_limit=config.train_limit,
        test_limit=config.test_limit,
        held_out_fraction=config.held_out_fraction,
        unlabelled=config.unlabelled_questions,
        seed=config.data_seed,
    )


def _require_connection(source: str) -> None:
    """Raise BadMail if a dataset is on the Hub, and this machine has no connection to it.

    `datasets` would ask the Hub six times. It still decides what to do about each answer of the Hub.
    """
    if is_local(source):
        return
    for last in (False, True):
        try:
            HfApi().dataset_info(source, timeout=_HUB_SECONDS)
            return
        except Exception as error:
            if isinstance(error, HfHubHTTPError) or not isinstance(error, HTTPError):
                return
            if last:
                raise BadMail(
                    f"{unreachable(source, error)}: name a folder that exists, or check the connection"
                ) from error
        time.sleep(_RETRY_SECONDS)


def source_version(config: DataConfig) -> str:
    """Return a version that changes with paths, sizes or modification times of local files. A dataset id stands for itself.

    Contents are not hashed, which would read a gigabyte of mail twice.
    """
    version = hashlib.sha256()
    for source in (config.emails, config.train_questions, config.test_questions):
        version.update(f"{source}\n".encode("utf-8", "surrogateescape"))
        for path in files_of(source) if source and source != SYNTHETIC else ():
            version.update(f"{path} {_state(path)}\n".encode("utf-8", "surrogateescape"))
    for path in map(str, rating_files(config.reviewed_feedback) if config.reviewed_feedback else ()):
        version.update(f"{path} {_state(path)}\n".encode("utf-8", "surrogateescape"))
    return version.hexdigest()[:16]


def current_source_version(config: DataConfig) -> str:
    """Return a version that changes with the revision of a dataset on the Hub, and with the mails of an account, too.

    Raises Unreachable if the server does not answer, and BadMail if it refuses.
    """
    version = hashlib.sha256(source_version(config).encode())
    for dataset in (config.emails, config.train_questions, config.test_questions):
        if dataset and is_imap(dataset):
            version.update(
                f"{dataset} {ImapMails(dataset, IMAP_COPIES).version()}\n".encode("utf-8", "surrogateescape")
            )
        elif dataset and dataset != SYNTHETIC and not Path(dataset).expanduser().exists():
            try:
                revision = HfApi().dataset_info(dataset, timeout=_HUB_SECONDS).sha
            except Exception as error:  # the Hub's client raises its own errors and those of its HTTP library
                reason = " ".join(str(error).split())[:160]
                raise Unreachable(
                    f"{dataset}: the Hub does not say whether it changed ({reason}), and there is no such folder here: "
                    "check the connection, or name a folder with its files"
                ) from error
            version.update(f"{dataset} {revision}\n".encode())
    return version.hexdigest()[:16]


def prepared_version(config: DataConfig) -> str | None:
    """Return the `source_version` of the newest mail database with these settings and local files; `None` if there is none."""
    try:
        versions = Client().list_artifact_versions(artifact=MAIL_DATABASE, sort_by="desc:created", size=50)
    except KeyError:
        return None
    for version in versions:
        local = version.run_metadata.get("local_version")
        if settings_of_step(version) == config.model_dump(mode="json") and local == source_version(config):
            found: str = version.run_metadata["source_version"]
            return found
    return None


def settings_of_step(version: ArtifactVersionResponse) -> dict[str, Any]:
    """Return the settings of the step that made an artifact.

    They are empty if no step made it or its run was deleted, which leaves the artifact in the store.
    """
    if version.producer_step_run_id is None:
        return {}
    settings: dict[str, Any] = version.step.config.parameters.get("config", {})
    return settings


def local_sources(config: DataConfig) -> list[str]:
    """Return the configured sources that only this machine has: files, and an account whose password is here."""
    sources = (config.emails, config.train_questions, config.test_questions, config.reviewed_feedback)
    return [
        source
        for source in sources
        if source and source != SYNTHETIC and (is_imap(source) or Path(source).expanduser().exists())
    ]


def _state(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError as error:
        return str(error.strerror)
    return f"{found.st_size} {found.st_mtime_ns}"
