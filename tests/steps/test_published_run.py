"""A run's folder in an artifact store: which files are published, in which order, and behaviour without the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from zenml.artifact_stores.base_artifact_store import BaseArtifactStore
from zenml.client import Client

from materializers.local_files import get_file
from steps.training import published_run
from steps.training.published_run import RUNS_FOLDER, PublishedRun, published_experiments
from training.record.experiment import Experiment
from training.record.history import HISTORY_FILE

pytestmark = pytest.mark.service

MODEL = Path("art/models/task")


@pytest.fixture
def store() -> Iterator[BaseArtifactStore]:
    store = Client().active_stack.artifact_store
    yield store
    shutil.rmtree(Path(store.path) / RUNS_FOLDER, ignore_errors=True)


def finish_step(folder: Path, step: int, prune: int | None = None) -> None:
    """What the trainer leaves in a run's folder."""
    checkpoint = folder / MODEL / "checkpoints" / f"{step:04d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter_model.safetensors").write_bytes(bytes([step]) * 100)
    with (folder / MODEL / HISTORY_FILE).open("a") as file:
        file.write(f"{step}\n")
    if prune is not None:
        shutil.rmtree(folder / MODEL / "checkpoints" / f"{prune:04d}")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_machine_has_the_same_folder(store: BaseArtifactStore, tmp_path: Path) -> None:
    here, there = tmp_path / "here" / "run", tmp_path / "there" / "run"
    run = PublishedRun(store, here)
    for step in (1, 2, 3):
        finish_step(here, step, prune=step - 1 if step > 1 else None)
        run.publish()
    (here / MODEL / ".0004.partial").mkdir()
    (here / MODEL / ".0004.partial" / "torn").write_text("x")
    run.publish()
    assert PublishedRun(store, there).fetch() == 3
    shutil.rmtree(here / MODEL / ".0004.partial")
    assert content(there) == content(here) and len(content(there)) == 2


def test_runs_in_the_store_are_described_by_their_experiment(store: BaseArtifactStore, tmp_path: Path) -> None:
    assert published_experiments(store) == []
    experiment = Experiment(
        name="long",
        run="r1",
        config={"max_steps": 5},
        git_revision=None,
        base_model="m",
        base_model_checksum="0" * 64,
        created=datetime(2026, 11, 21, tzinfo=UTC),
    )
    for name in ("r1-base", "before-its-first-step"):
        finish_step(tmp_path / name, 1)
        if name == "r1-base":
            experiment.save(tmp_path / name)
        PublishedRun(store, tmp_path / name).publish()
    assert published_experiments(store) == [experiment]


def test_a_row_is_published_after_the_files_it_refers_to(
    store: BaseArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_step(tmp_path / "run", 1)
    opened: list[str] = []
    open_file = store.open

    def noted(path: str, mode: str = "r") -> object:
        opened.append(path)
        return open_file(path, mode)

    monkeypatch.setattr(store, "open", noted)
    PublishedRun(store, tmp_path / "run").publish()
    assert len(opened) == 2 and opened[-1].endswith(HISTORY_FILE)


def test_only_changed_files_are_uploaded_again(
    store: BaseArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_step(tmp_path / "a" / "run", 1)
    PublishedRun(store, tmp_path / "a" / "run").publish()
    fetched = PublishedRun(store, tmp_path / "b" / "run")
    fetched.fetch()
    finish_step(tmp_path / "b" / "run", 2)
    sent: list[str] = []
    monkeypatch.setattr("steps.training.published_run.put_file", lambda store, source, uri: sent.append(source.name))
    fetched.publish()
    assert sent == ["adapter_model.safetensors", HISTORY_FILE]


def test_a_longer_local_run_is_kept(store: BaseArtifactStore, tmp_path: Path) -> None:
    finish_step(tmp_path / "a" / "run", 1)
    PublishedRun(store, tmp_path / "a" / "run").publish()
    finish_step(tmp_path / "b" / "run", 1)
    finish_step(tmp_path / "b" / "run", 2)
    before = content(tmp_path / "b")
    assert PublishedRun(store, tmp_path / "b" / "run").fetch() == 0 and content(tmp_path / "b") == before


def test_nothing_published_is_nothing_fetched(store: BaseArtifactStore, tmp_path: Path) -> None:
    assert PublishedRun(store, tmp_path / "run").fetch() == 0 and not (tmp_path / "run").exists()


def test_a_store_that_is_away_costs_a_line_and_the_next_step_catches_up(
    store: BaseArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = PublishedRun(store, tmp_path / "run")
    finish_step(tmp_path / "run", 1)
    with monkeypatch.context() as away:
        away.setattr(store, "open", lambda *_: (_ for _ in ()).throw(ConnectionError("refused\nby the host")))
        run.publish()
    (line,) = capsys.readouterr().out.strip().splitlines()
    assert "not in the artifact store yet" in line and "refused by the host" in line
    finish_step(tmp_path / "run", 2)
    run.publish()
    assert PublishedRun(store, tmp_path / "there" / "run").fetch() == 2


def test_a_fetch_that_is_interrupted_changes_nothing(
    store: BaseArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here" / "run", tmp_path / "there" / "run"
    run = PublishedRun(store, here)
    for number in (1, 2):
        finish_step(here, number)
        run.publish()
    finish_step(there, 1)
    before = content(there)
    fetched = []

    def interrupted(store: BaseArtifactStore, uri: str, target: Path) -> None:
        fetched.append(uri)
        if len(fetched) == 3:
            raise KeyboardInterrupt
        get_file(store, uri, target)

    monkeypatch.setattr(published_run, "get_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PublishedRun(store, there).fetch()
    assert content(there) == before and [path.name for path in there.parent.iterdir()] == ["run"]
    monkeypatch.setattr(published_run, "get_file", get_file)
    assert PublishedRun(store, there).fetch() == 2
    assert content(there) == content(here)
