from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from training.checkpoint import ADAPTER_CONFIG, ADAPTER_WEIGHTS, FILES, MANIFEST, Checkpoint
from training.errors import BadInput


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / ADAPTER_CONFIG).write_text("{}")
    (adapter / ADAPTER_WEIGHTS).write_bytes(b"weights")
    (adapter / "optimizer.pt").write_bytes(b"not part of a checkpoint")
    return Checkpoint.from_adapter(
        adapter,
        base_model="owner/model",
        base_model_checksum="a" * 64,
        base_model_source="package==1.0",
        name="run",
        step=12,
        config={"max_turns": 6},
        data={"mail_database": "3"},
        created=datetime(2026, 11, 21, tzinfo=UTC),
    )


def test_round_trip(checkpoint: Checkpoint, tmp_path: Path) -> None:
    saved = checkpoint.save(tmp_path / "stored")
    loaded = Checkpoint.load(saved.path)
    assert loaded.manifest == checkpoint.manifest
    assert {file.name for file in saved.path.iterdir()} == set(FILES)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_save_replaces_a_checkpoint_but_nothing_else(checkpoint: Checkpoint, tmp_path: Path) -> None:
    target = checkpoint.save(tmp_path / "stored").path
    (checkpoint.path / ADAPTER_WEIGHTS).write_bytes(b"later weights")
    later = Checkpoint.from_adapter(checkpoint.path, **checkpoint.manifest.model_dump(exclude={"adapter_checksum"}))
    later.save(target)
    assert (Checkpoint.load(target).path / ADAPTER_WEIGHTS).read_bytes() == b"later weights"

    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("irreplaceable")
    with pytest.raises(BadInput, match="is not a checkpoint"):
        checkpoint.save(other)
    assert (other / "chapter.txt").exists()


def test_a_failed_save_keeps_the_previous_checkpoint(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = checkpoint.save(tmp_path / "stored").path

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full_disk)
    with pytest.raises(BadInput, match="no space left"):
        checkpoint.save(target)
    assert Checkpoint.load(target).manifest == checkpoint.manifest
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.parametrize("missing", FILES)
def test_missing_file_is_named(checkpoint: Checkpoint, tmp_path: Path, missing: str) -> None:
    folder = checkpoint.save(tmp_path / "stored").path
    (folder / missing).unlink()
    with pytest.raises(BadInput, match=missing):
        Checkpoint.load(folder)


def test_damage_is_noticed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path / "stored").path
    (folder / ADAPTER_WEIGHTS).write_bytes(b"weighty")
    with pytest.raises(BadInput, match=ADAPTER_WEIGHTS):
        Checkpoint.load(folder)
    (folder / MANIFEST).write_text(json.dumps({"base_model": "owner/model"}))
    with pytest.raises(BadInput, match="base_model_checksum"):
        Checkpoint.load(folder)
    (folder / MANIFEST).write_bytes(b"\xff{")
    with pytest.raises(BadInput, match="damaged") as raised:
        Checkpoint.load(folder)
    assert "\n" not in str(raised.value)


def test_another_base_model_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.require_base("a renamed copy", "a" * 64)
    with pytest.raises(BadInput, match="set base_model to package==1.0"):
        checkpoint.require_base("owner/other", "b" * 64)
    with pytest.raises(BadInput, match="other weights of owner/model or another form of its tool calls"):
        checkpoint.require_base("owner/model", "b" * 64)
