from __future__ import annotations

import io
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from zenml.artifact_stores import LocalArtifactStore, LocalArtifactStoreConfig
from zenml.enums import StackComponentType
from zenml.materializers.built_in_materializer import BuiltInContainerMaterializer
from zenml.materializers.materializer_registry import materializer_registry

from environment.email_db import MailDatabase, build_database
from environment.models import Email, Scenario, SearchResult
from materializers import local_files
from materializers.checkpoint import CheckpointMaterializer
from materializers.json_lines import LINES_FILE, JsonLinesMaterializer
from materializers.local_files import DamagedArtifact
from materializers.mail_database import DATABASE_FILE, MailDatabaseMaterializer
from tests.small_adapter import write_small_adapter
from training.checkpoint import ADAPTER_WEIGHTS, FILES, Checkpoint
from training.errors import BadInput

pytestmark = pytest.mark.service

REMOTE = "s3://bucket/artifact"


class RemoteStore:
    """An artifact store whose URIs are no local paths. Counts the bytes that leave it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.bytes_read = 0

    def open(self, path: str, mode: str = "r") -> Any:
        store = self

        if "r" in mode:
            content = self.files[path]
            self.bytes_read += len(content)
            return io.BytesIO(content) if "b" in mode else io.StringIO(content.decode())

        class Written(io.BytesIO):
            def close(self) -> None:
                store.files[path] = self.getvalue()
                super().close()

        written = Written()
        return written if "b" in mode else io.TextIOWrapper(written)


@pytest.fixture
def local_store(tmp_path: Path) -> LocalArtifactStore:
    now = datetime.now(UTC)
    return LocalArtifactStore(
        name="local",
        id=uuid.uuid4(),
        config=LocalArtifactStoreConfig(path=str(tmp_path / "store")),
        flavor="local",
        type=StackComponentType.ARTIFACT_STORE,
        user=None,
        created=now,
        updated=now,
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(local_files, "DOWNLOADS", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def database(tmp_path: Path) -> MailDatabase:
    mail = Email(
        message_id="<1@kestrel.example>",
        subject="Budget",
        from_address="ann@kestrel.example",
        to_addresses=("bo@kestrel.example",),
        date=datetime(2024, 3, 1),
        body="The budget is settled.",
    )
    build_database([mail], tmp_path / "built.sqlite")
    return MailDatabase(tmp_path / "built.sqlite")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    adapter = write_small_adapter(tmp_path / "adapter")
    described = {"base_model": "b", "base_model_checksum": "c", "base_model_source": "b", "name": "n", "step": 1}
    return Checkpoint.from_adapter(adapter, created=datetime.now(UTC), **described)


def test_local_database_is_opened_in_place(local_store: LocalArtifactStore, database: MailDatabase) -> None:
    uri = os.path.join(local_store.path, "mails")
    os.makedirs(uri)
    MailDatabaseMaterializer(uri, local_store).save(database)
    database.path.unlink()
    loaded = MailDatabaseMaterializer(uri, local_store).load(MailDatabase)
    assert loaded.path == Path(uri) / DATABASE_FILE
    assert loaded.inboxes() == ["ann@kestrel.example", "bo@kestrel.example"]


def test_remote_database_is_downloaded_once(database: MailDatabase, cache: Path) -> None:
    store = RemoteStore()
    MailDatabaseMaterializer(REMOTE, store).save(database)  # type: ignore[arg-type]
    first = MailDatabaseMaterializer(REMOTE, store).load(MailDatabase)  # type: ignore[arg-type]
    read = store.bytes_read
    second = MailDatabaseMaterializer(REMOTE, store).load(MailDatabase)  # type: ignore[arg-type]
    assert first.content_checksum == second.content_checksum == database.content_checksum
    assert cache in first.path.parents and first.path == second.path
    assert store.bytes_read - read < 1000 < first.path.stat().st_size


def test_damaged_download_is_refused_and_not_kept(database: MailDatabase, cache: Path) -> None:
    store = RemoteStore()
    MailDatabaseMaterializer(REMOTE, store).save(database)  # type: ignore[arg-type]
    store.files[f"{REMOTE}/{DATABASE_FILE}"] = store.files[f"{REMOTE}/{DATABASE_FILE}"][:-1]
    with pytest.raises(DamagedArtifact):
        MailDatabaseMaterializer(REMOTE, store).load(MailDatabase)  # type: ignore[arg-type]
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_database_metadata(local_store: LocalArtifactStore, database: MailDatabase) -> None:
    metadata = MailDatabaseMaterializer("unused", local_store).extract_metadata(database)
    assert metadata == {"mails": 1, "inboxes": 2, "checksum": database.content_checksum}


def test_equal_adapters_with_other_limits_of_episodes_are_other_policies(
    checkpoint: Checkpoint, local_store: LocalArtifactStore
) -> None:
    def content(**changes: Any) -> str | None:
        changed = Checkpoint(checkpoint.path, checkpoint.manifest.model_copy(update=changes))
        return CheckpointMaterializer("unused", local_store).compute_content_hash(changed)

    assert content() == content(created=datetime(2026, 1, 1, tzinfo=UTC)) != content(config={"max_turns": 4})


@pytest.mark.parametrize("remote", [False, True])
def test_checkpoint_travels(checkpoint: Checkpoint, local_store: LocalArtifactStore, remote: bool) -> None:
    store: Any = RemoteStore() if remote else local_store
    uri = REMOTE if remote else os.path.join(local_store.path, "checkpoint")
    if not remote:
        os.makedirs(uri)
    CheckpointMaterializer(uri, store).save(checkpoint)
    loaded = CheckpointMaterializer(uri, store).load(Checkpoint)
    assert loaded.manifest == checkpoint.manifest
    assert (loaded.path / ADAPTER_WEIGHTS).read_bytes() == (checkpoint.path / ADAPTER_WEIGHTS).read_bytes()
    assert loaded.path != checkpoint.path
    assert (loaded.path == Path(uri)) is not remote
    for name in FILES:  # in the store of this machine, or in what was downloaded from another
        content = (loaded.path / name).read_bytes()
        (loaded.path / name).write_bytes(content + b" ")
        with pytest.raises(BadInput, match=f"{name} is not what was stored"):
            CheckpointMaterializer(uri, store).load(Checkpoint)
        (loaded.path / name).write_bytes(content)


def test_lists_travel_as_one_file(local_store: LocalArtifactStore) -> None:
    uri = os.path.join(local_store.path, "scenarios")
    os.makedirs(uri)
    scenarios = [
        Scenario(
            id=f"q{i}",
            question="Où\u2028est Zoë?\n",
            answer="4B",
            message_ids=("<1@x.example>",),
            inbox_address="ann@kestrel.example",
            query_date=datetime(2024, 3, 1, i),
            split="test",
        )
        for i in range(3)
    ]
    JsonLinesMaterializer(uri, local_store).save(scenarios)
    assert os.listdir(uri) == [LINES_FILE]
    assert JsonLinesMaterializer(uri, local_store).load(list) == scenarios


def test_empty_and_incomplete_lists(local_store: LocalArtifactStore) -> None:
    uri = os.path.join(local_store.path, "list")
    os.makedirs(uri)
    lines = JsonLinesMaterializer(uri, local_store)
    lines.save([])
    assert lines.load(list) == []
    hit = SearchResult(id=1, message_id="<1@x>", date=datetime(2024, 1, 1), from_address="a", subject="s", snippet="t")
    lines.save([hit, hit])
    stored = Path(uri) / LINES_FILE
    whole = stored.read_text()
    for damaged in (
        "".join(whole.splitlines(keepends=True)[:-1]),
        whole[:-9],
        "",
        "{}",
        "5",
        whole.replace('"id"', '"i"'),
    ):
        stored.write_text(damaged)
        with pytest.raises(DamagedArtifact, match="is damaged"):
            lines.load(list)
    with pytest.raises(TypeError):
        lines.save([hit, "text"])  # type: ignore[list-item]


def test_half_of_a_surrogate_pair_does_not_make_a_list_unreadable(local_store: LocalArtifactStore) -> None:
    uri = os.path.join(local_store.path, "list")
    os.makedirs(uri)
    lines = JsonLinesMaterializer(uri, local_store)
    hit = SearchResult(id=1, message_id="<1@x>", date=datetime(2024, 1, 1), from_address="ä", subject="s", snippet="t")
    lines.save([hit.model_copy(update={"snippet": "\ud83d!"})])
    assert lines.load(list) == [hit.model_copy(update={"snippet": "?!"})]


def test_other_lists_keep_zenmls_own_materializer() -> None:
    assert materializer_registry[list] is BuiltInContainerMaterializer
