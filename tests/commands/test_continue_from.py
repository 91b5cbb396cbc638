"""Valid values of `continue_from`, and the start of a new run from each."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from zenml import save_artifact

from commands import continue_from
from commands.arguments import parse_arguments
from commands.continue_from import with_start
from configs.loading import load_config
from materializers.checkpoint import CheckpointMaterializer
from steps.artifact_names import CHECKPOINT
from tests.settings import config_of
from tests.tiny_checkpoint import tiny_checkpoint
from training.checkpoint import Checkpoint
from training.errors import BadInput

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """No runs, and nothing in production."""
    monkeypatch.setattr(continue_from, "all_runs", list)
    monkeypatch.setattr(continue_from, "production_version", lambda *_: None)


def start_of(name: str, rank: int = 2) -> str | None:
    return with_start(config_of(continue_from=name, lora_rank=rank)).trainer.continue_from


def test_a_folder_is_stored_once_and_an_id_is_itself(tmp_path: Path) -> None:
    first, second = tiny_checkpoint(tmp_path, seed=1), tiny_checkpoint(tmp_path, seed=2)
    ids = [start_of(str(checkpoint.path)) for checkpoint in (first, second, first)]
    assert ids[0] == ids[2] != ids[1], "the run's key depends on the adapter, not on when it was named"
    assert ids[0] and start_of(ids[0]) == ids[0]
    renamed = Checkpoint(first.path, first.manifest.model_copy(update={"name": "other"}))
    renamed.save(tmp_path / "renamed")
    assert start_of(str(tmp_path / "renamed")) != ids[0], "its prompt may be another"
    stored = save_artifact(second, name=CHECKPOINT, materializer=CheckpointMaterializer)
    assert start_of(str(stored.id)) == str(stored.id)


@pytest.mark.parametrize("name", ["first", "runs/\U0001f600", "a: [b]", 'say "hello"', "C:\\runs"])
def test_from_is_the_text_as_it_was_typed(name: str) -> None:
    arguments = parse_arguments(["--pipeline", "train", "--from", name], "")
    assert load_config(None, arguments.set).trainer.continue_from == name


def test_an_invalid_start_is_refused_before_anything_runs(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path, seed=1)
    with pytest.raises(
        BadInput, match="lora_rank=16 does not fit the checkpoint to continue from, which has 2: set lora_rank=2"
    ):
        start_of(str(checkpoint.path), rank=16)
    with pytest.raises(BadInput, match="lora_layers=2 does not fit .*, which has null: set lora_layers=null"):
        checkpoint.require_shape(2, layers=2)
    checkpoint.require_shape(2, layers=4)  # all layers of the base
    with pytest.raises(BadInput, match="there is no run 'first'"):
        start_of("first")
    with pytest.raises(BadInput, match="adapter_config.json"):
        start_of(str(tmp_path))


def test_a_dry_run_checks_a_folder_and_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tiny_checkpoint(tmp_path, seed=7).path)
    monkeypatch.delattr(continue_from, "save_artifact")
    config = config_of(continue_from=folder, lora_rank=2)
    assert with_start(config, dry_run=True) == config
    with pytest.raises(BadInput, match="lora_rank=16 does not fit"):
        with_start(config_of(continue_from=folder, lora_rank=16), dry_run=True)


def test_production_is_looked_up_when_a_run_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert start_of("production") is None
    assert "nothing is in production yet, so this run starts from the base model" in capsys.readouterr().out
    scheduled = with_start(config_of(continue_from="production"), scheduled=True)
    assert scheduled.trainer.continue_from == "production"


def test_a_schedule_that_does_not_fit_production_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny_checkpoint(tmp_path, seed=1)
    stored = save_artifact(checkpoint, name=CHECKPOINT, materializer=CheckpointMaterializer)
    version = SimpleNamespace(get_artifact=lambda name: stored)
    monkeypatch.setattr(continue_from, "production_version", lambda *_: version)
    with pytest.raises(BadInput, match="^lora_rank=16 does not fit .*, which has 2"):
        with_start(config_of(continue_from="production", lora_rank=16), scheduled=True)
    assert (
        with_start(config_of(continue_from="production", lora_rank=2), scheduled=True).trainer.continue_from
        == "production"
    )
