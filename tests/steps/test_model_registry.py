from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from zenml.enums import ModelStages

from steps import model_registry
from steps.artifact_names import CHECKPOINT, MAIL_DATABASE, MODEL_NAME
from training.checkpoint import Checkpoint, CheckpointManifest
from training.errors import BadInput

pytestmark = pytest.mark.service


class Store:
    """Model versions (newest first) and artifact versions, as far as the registry asks for them."""

    def __init__(self) -> None:
        self.versions: list[Any] = []
        self.artifacts: dict[tuple[str, str | None], Any] = {}
        self.runs: list[Any] = []

    def add_version(self, stage: str | None = None, **artifacts: Any) -> Any:
        name = f"r{len(self.versions)}"
        version = SimpleNamespace(name=name, stage=stage, run_metadata={}, get_artifact=artifacts.get)
        self.versions.insert(0, version)
        return version

    def get_model_version(self, name: str, stage: ModelStages) -> Any:
        assert name == MODEL_NAME
        for version in self.versions:
            if version.stage == stage.value:
                return version
        raise KeyError(stage)

    def list_model_versions(self, **_: Any) -> list[Any]:
        if not self.versions:
            raise KeyError(MODEL_NAME)
        return self.versions

    def list_pipeline_runs(self, **_: Any) -> list[Any]:
        return self.runs

    def get_artifact_version(self, name: str, version: str | None = None) -> Any:
        return self.artifacts[name, version]


def stored(step: int, **data: str) -> Any:
    checkpoint = Checkpoint.__new__(Checkpoint)
    checkpoint.manifest = SimpleNamespace(step=step, data=data)
    return SimpleNamespace(id=f"id-{step}", name=CHECKPOINT, load=lambda: checkpoint)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(model_registry, "Client", lambda: store)
    return store


def test_production_comes_first(store: Store) -> None:
    store.add_version(stage="production", **{CHECKPOINT: stored(1)})
    store.add_version(**{CHECKPOINT: stored(2)})
    found = model_registry.find_checkpoint()
    assert (found.checkpoint.manifest.step, found.reference) == (1, "id-1")


def test_else_the_latest_that_has_one(store: Store) -> None:
    store.add_version(**{CHECKPOINT: stored(1)})
    store.add_version(**{CHECKPOINT: stored(2)})
    store.add_version(**{MAIL_DATABASE: "data preparation only"})
    assert model_registry.find_checkpoint().checkpoint.manifest.step == 2


def test_a_rejected_version_is_served_only_with_unpromoted(store: Store) -> None:
    rejected = store.add_version(**{CHECKPOINT: stored(1)})
    with pytest.raises(BadInput, match=r"no version is in production; the latest is r0 \(no stage, not evaluated\)"):
        model_registry.find_checkpoint(unpromoted=False)
    rejected.run_metadata = {
        "evaluation": {"n": 155, "trained": 0.144},
        "promotion": {"promoted": False, "reason": "14.4% correct is not above promotion_floor=0.2"},
    }
    with pytest.raises(BadInput, match=r"14.4% of 155 questions correct, not promoted: 14.4% .*--unpromoted") as caught:
        model_registry.find_checkpoint(unpromoted=False)
    assert "\n" not in str(caught.value)
    assert model_registry.find_checkpoint(unpromoted=True).checkpoint.manifest.step == 1
    store.add_version(stage="production", **{CHECKPOINT: stored(2)})
    assert model_registry.find_checkpoint(unpromoted=False).checkpoint.manifest.step == 2


@pytest.mark.parametrize("prepared", [False, True])
def test_nothing_trained(store: Store, prepared: bool) -> None:
    if prepared:
        store.add_version(stage="production", **{MAIL_DATABASE: "mails"})
    with pytest.raises(BadInput, match="--pipeline train"):
        model_registry.find_checkpoint()


def test_named_checkpoints(store: Store, tmp_path: Path) -> None:
    store.artifacts["id-7", None] = stored(7)
    assert model_registry.find_checkpoint("id-7").checkpoint.manifest.step == 7
    store.artifacts["other", None] = SimpleNamespace(name="other", load=lambda: [1])
    with pytest.raises(BadInput, match="not a checkpoint"):
        model_registry.find_checkpoint("other")
    with pytest.raises(BadInput, match="neither a folder nor an artifact"):
        model_registry.find_checkpoint("missing")
    with pytest.raises(BadInput, match="adapter_config.json"):
        model_registry.find_checkpoint(str(tmp_path))


def test_a_manifest_without_its_adapter(store: Store, tmp_path: Path) -> None:
    known = {"base_model": "b", "base_model_checksum": "c", "base_model_source": "s", "name": "r1", "step": 3}
    store.artifacts["here", None] = SimpleNamespace(uri=str(tmp_path / "here"))
    store.artifacts["gone", None] = SimpleNamespace(uri=str(tmp_path / "gone"))
    (tmp_path / "here").mkdir()
    file = tmp_path / "here" / "manifest.json"
    file.write_text("{")
    assert [model_registry.find_manifest(name) for name in ("deleted", "gone", "here")] == [None] * 3
    file.write_text(CheckpointManifest(**known, adapter_checksum="a", created=datetime.now(UTC)).model_dump_json())
    found = model_registry.find_manifest("here")
    assert found and found.name == "r1"


def test_mail_database_follows_the_checkpoint(store: Store) -> None:
    with pytest.raises(BadInput, match="--pipeline data"):
        model_registry.find_mail_database()
    store.artifacts[MAIL_DATABASE, None] = "latest"
    store.artifacts["id-of-3", None] = "trained on"
    store.artifacts["chosen", None] = "chosen"
    assert model_registry.find_mail_database() == "latest"

    store.add_version(**{CHECKPOINT: stored(0, **{MAIL_DATABASE: "elsewhere"})})
    assert model_registry.find_mail_database(model_registry.find_checkpoint()) == "latest"
    store.add_version(**{CHECKPOINT: stored(1, **{MAIL_DATABASE: "id-of-3"})})
    assert model_registry.find_mail_database(model_registry.find_checkpoint()) == "trained on"
    store.add_version(**{CHECKPOINT: stored(2, **{MAIL_DATABASE: "id-of-3"}), MAIL_DATABASE: "linked"})
    assert model_registry.find_mail_database(model_registry.find_checkpoint()) == "linked"
    assert model_registry.find_mail_database(model_registry.find_checkpoint(), "chosen") == "chosen"
    assert model_registry.find_mail_database(model_registry.find_checkpoint(), latest=True) == "latest"
