"""Data preparation as a pipeline run: an archive with damage among its mails, and an archive that is damaged itself."""

from __future__ import annotations

import errno
import gc
import io
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zenml.client import Client

from configs.schema import DataConfig
from environment.email_db import MailDatabase, build_database
from environment.errors import BadMail
from materializers.local_files import DamagedArtifact
from materializers.mail_database import MailDatabaseMaterializer
from pipelines.data_preparation import data_preparation_pipeline
from steps.data import create_database
from steps.data.sources import company, prepared_version, source_version
from tests.environment.raw_mails import raw_mail

pytestmark = pytest.mark.service


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    monkeypatch.setattr(create_database, "DATA", tmp_path / "data")
    files = {f"allen-p/inbox/{number}.": raw_mail(number) for number in range(1, 11)}
    files |= {"allen-p/inbox/11.": b"no mail", "allen-p/inbox/12.": raw_mail(12, date="soon")}
    with tarfile.open(tmp_path / "mail.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    question = {"question": "Which note?", "answer": "Note 3", "how_realistic": 1.0, "query_date": "2002-01-01"}
    question |= {"inbox_address": "tim.belden@enron.com"}
    for number, split in ((3, "train"), (4, "test")):
        row = question | {"id": number, "message_ids": [f"<{number}.JavaMail@thyme>"]}
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{split}.parquet")
    return DataConfig(emails=str(tmp_path / "mail.tar.gz"), train_questions=str(tmp_path))


def run(config: DataConfig) -> dict:
    started = data_preparation_pipeline(config=config, source_version=source_version(config))
    return Client().get_pipeline_run(started.id).steps


def test_mails_that_are_left_out_are_counted_and_listed(config: DataConfig) -> None:
    steps = run(config)
    outputs = steps["create_database"].outputs
    counts = outputs["mail_database"][0].run_metadata
    assert (counts["read"], counts["kept"], counts["dropped"]) == (12, 10, {"bad_date": 1, "no_headers": 1})
    page = outputs["mail_report"][0].load()
    assert "allen-p/inbox/11." in page and "allen-p/inbox/12." in page and "soon" in page
    assert outputs["mail_database"][0].load().email_count() == 10
    assert {step.status.value for step in run(config).values()} == {"cached"}
    assert prepared_version(config) == source_version(config)
    os.utime(Path(config.train_questions or "") / "test.parquet", (1, 1))
    assert prepared_version(config) is None, "a server that is away does not hide a change here"

    archive = Path(config.emails)
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(BadMail, match="cut short"):
        run(config)
    gc.collect()
    assert [file.name for file in create_database.DATA.iterdir()] == ["mail_database.sqlite"]


def test_each_of_two_runs_at_once_stores_its_own_mails(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(add_output_metadata=lambda *_, **__: None)
    monkeypatch.setattr(create_database, "get_step_context", lambda: context)
    build = create_database.create_database.entrypoint
    small = config.model_copy(update={"emails": str(tmp_path / "small.mbox")})
    Path(small.emails).write_bytes(b"From a@x Mon Mar  4 10:00:00 2024\n" + raw_mail(1))
    mine, _ = build(config, "1")
    other, _ = build(small, "1")  # before ZenML has stored the first one
    newest = create_database.DATA / "mail_database.sqlite"
    assert MailDatabase(newest).content_checksum == other.content_checksum
    store = Client().active_stack.artifact_store
    for database, kept in ((mine, 10), (other, 1)):
        materializer = MailDatabaseMaterializer(f"{store.path}/{tmp_path.name}-{kept}", store)
        os.makedirs(materializer.uri)
        materializer.save(database)
        stored = MailDatabase(Path(materializer.uri) / "mails.sqlite")
        assert stored.content_checksum == database.content_checksum and len(stored.rows("SELECT 1 FROM email")) == kept


def test_what_a_killed_run_left_goes_and_what_another_run_builds_stays(
    config: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        create_database, "get_step_context", lambda: SimpleNamespace(add_output_metadata=lambda *_, **__: None)
    )
    data, build = create_database.DATA, create_database.create_database.entrypoint
    data.mkdir()
    killed = [data / f".mail_database-4711{end}" for end in ("", ".partial-4712", ".partial-4712.lock")]
    for file in killed:
        file.touch()
    mine, _ = build(config, "1")
    other, _ = build(config, "2")
    assert not any(file.exists() for file in killed) and mine.path.is_file() and other.path.is_file()
    del mine, other
    gc.collect()
    assert [file.name for file in data.iterdir()] == ["mail_database.sqlite"]
    monkeypatch.setattr("environment.scratch_file.FileLock.acquire", refused)
    with pytest.raises(BadMail, match="cannot write a mail database to .*: Permission denied"):
        build(config, "3")


def refused(*_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_database_that_was_replaced_is_not_stored(config: DataConfig, tmp_path: Path) -> None:
    mails = [tmp_path / f"{name}.sqlite" for name in ("opened", "other")]
    for count, path in enumerate(mails, start=1):
        build_database(list(company(config.model_copy(update={"data_seed": count})).emails())[:50], path)
    opened = MailDatabase(mails[0])
    os.replace(mails[1], mails[0])
    with pytest.raises(DamagedArtifact, match="was replaced while it was stored"):
        MailDatabaseMaterializer(str(tmp_path), Client().active_stack.artifact_store).save(opened)
