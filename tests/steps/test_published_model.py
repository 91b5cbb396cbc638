"""The base model through a remote artifact store: once there, whole or not at all, and then no source is asked."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.schema import TrainingConfig
from steps import published_model
from steps.evaluation import rows
from steps.evaluation.load_trained_model import load_trained_model
from steps.published_model import BASE_MODELS_FOLDER, PUBLISHED_FILE, base_model_files
from steps.training import training_run
from steps.training.setup_art_model import setup_art_model
from training.backends.model_sources.folder import BaseModelFiles, model_checksum
from training.errors import BadInput

pytestmark = pytest.mark.service

ROOT = "s3://bucket/artifacts"


class Store:
    """An artifact store whose URIs are no local paths, and what was written to it and read from it."""

    def __init__(self) -> None:
        self.path, self.config = ROOT, SimpleNamespace(is_local=False)
        self.files: dict[str, bytes] = {}
        self.written: list[str] = []
        self.read: list[str] = []

    def exists(self, path: str) -> bool:
        return path in self.files

    def makedirs(self, path: str) -> None: ...

    def remove(self, path: str) -> None:
        del self.files[path]

    def open(self, path: str, mode: str = "r") -> Any:
        if "r" in mode:
            self.read.append(Path(path).name)
            return io.BytesIO(self.files[path])
        store = self

        class Written(io.BytesIO):
            def close(self) -> None:
                if not self.closed:
                    store.files[path] = self.getvalue()
                    store.written.append(Path(path).name)
                super().close()

        written = Written()
        return written if "b" in mode else io.TextIOWrapper(written)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    client = SimpleNamespace(active_stack=SimpleNamespace(artifact_store=store))
    monkeypatch.setattr(published_model, "Client", lambda: client)
    return store


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    for shard in (b"one", b"two"):
        (folder / f"{shard.decode()}.safetensors").write_bytes(shard * 1000)
    (folder / "optimizer.pt").write_bytes(b"no part of the model")
    return folder


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder of another machine."""
    monkeypatch.setattr(published_model, "MODELS", tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def published(store: Store, base: Path, models: Path) -> dict[str, str]:
    """The base model as a step of another machine gets it, where its source is not."""
    described = setup_art_model.entrypoint(str(base))
    shutil.rmtree(base)
    return described


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_listing_comes_last_and_nothing_is_published_twice(store: Store, base: Path) -> None:
    described = setup_art_model.entrypoint(str(base))
    assert store.written[-1] == PUBLISHED_FILE and len(store.written) == 6
    assert {Path(uri).relative_to(ROOT).parts[:2] for uri in store.files} == {
        (BASE_MODELS_FOLDER, described["checksum"])
    }
    store.written.clear()
    assert setup_art_model.entrypoint(str(base)) == described and store.written == []


def test_an_interrupted_upload_is_no_model_and_is_repeated(
    store: Store, base: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str) -> None:
        if len(store.written) == 3:
            raise ConnectionError("refused\nby the host")

    with monkeypatch.context() as away:
        away.setattr(store, "makedirs", refuse)
        described = setup_art_model.entrypoint(str(base))
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert "not in the artifact store" in line and "refused by the host" in line and store.files
    assert base_model_files(described["source"], described["checksum"]).path == base
    setup_art_model.entrypoint(str(base))
    shutil.rmtree(base)
    assert models in base_model_files(described["source"], described["checksum"]).path.parents


def test_another_machine_takes_it_from_the_store_once(store: Store, published: dict[str, str], models: Path) -> None:
    files = base_model_files(published["source"], published["checksum"])
    assert (files.id, files.checksum) == ("tiny", published["checksum"]) and models in files.path.parents
    assert model_checksum(files.path) == published["checksum"]
    expected = ["additional_chat_templates/tool_use.jinja", "config.json", "one.safetensors", "tokenizer_config.json"]
    assert files_below(files.path) == [*expected, "two.safetensors"]
    store.read.clear()
    assert base_model_files(published["source"], published["checksum"]) == files and store.read == [PUBLISHED_FILE]


def test_local_models_are_not_fetched(store: Store, base: Path, models: Path) -> None:
    described = setup_art_model.entrypoint(str(base))
    assert base_model_files(described["source"], described["checksum"]).path == base
    assert store.read == [PUBLISHED_FILE] and not models.exists()
    # The weights are the published ones, the tokenizer is not.
    (base / "tokenizer_config.json").write_text('{"chat_template": ""}')
    assert models in base_model_files(described["source"], described["checksum"]).path.parents


def test_another_chat_template_is_published_without_the_weights(store: Store, base: Path) -> None:
    setup_art_model.entrypoint(str(base))
    store.written.clear()
    (base / "tokenizer_config.json").write_text('{"chat_template": ""}')
    setup_art_model.entrypoint(str(base))
    assert store.written == ["tokenizer_config.json", PUBLISHED_FILE]


def test_the_same_weights_from_another_source_are_not_taken_for_it(
    store: Store, published: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_source = BaseModelFiles(id="other", path=tmp_path, checksum=published["checksum"])
    monkeypatch.setattr(published_model, "resolve_base_model", lambda *_, **__: of_source)
    assert base_model_files("owner/other", published["checksum"]) == of_source


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1], lambda content: b"x" + content[1:]], ids=["cut", "other"]
)
def test_a_damaged_file_is_refused_in_a_line_and_not_kept(
    store: Store, published: dict[str, str], models: Path, damage: Callable[[bytes], bytes]
) -> None:
    uri = f"{ROOT}/{BASE_MODELS_FOLDER}/{published['checksum']}/two.safetensors"
    store.files[uri] = damage(store.files[uri])
    with pytest.raises(BadInput, match=r"two\.safetensors arrived damaged .* remove s3://") as refusal:
        base_model_files(published["source"], published["checksum"])
    assert "\n" not in str(refusal.value) and list(models.iterdir()) == []


def expire(store: Store, folder: str) -> None:
    del store.files[f"{folder}/one.safetensors"]


def tear(store: Store, folder: str) -> None:
    store.files[f"{folder}/{PUBLISHED_FILE}"] = store.files[f"{folder}/{PUBLISHED_FILE}"][:-20]


def name_other_weights(store: Store, folder: str) -> None:
    listing = json.loads(store.files[f"{folder}/{PUBLISHED_FILE}"])
    store.files[f"{folder}/one.safetensors"] = b"others"
    listing["files"]["one.safetensors"] = hashlib.sha256(b"others").hexdigest()
    store.files[f"{folder}/{PUBLISHED_FILE}"] = json.dumps(listing).encode()


@pytest.mark.parametrize("spoil", [expire, tear, name_other_weights, lambda store, _: store.files.clear()])
def test_an_incomplete_publication_is_replaced_from_the_source(
    store: Store, base: Path, models: Path, spoil: Callable[[Store, str], None]
) -> None:
    described = setup_art_model.entrypoint(str(base))
    whole = dict(store.files)
    spoil(store, f"{ROOT}/{BASE_MODELS_FOLDER}/{described['checksum']}")
    assert base_model_files(described["source"], described["checksum"]).path == base and not models.exists()
    setup_art_model.entrypoint(str(base))
    assert store.files == whole


def test_a_local_store_is_left_alone(store: Store, base: Path, models: Path) -> None:
    store.config.is_local = True
    described = setup_art_model.entrypoint(str(base))
    assert base_model_files(described["source"], described["checksum"]).path == base
    assert store.files == {} and store.read == [] and not models.exists()


def test_the_evaluation_knows_a_published_base_without_fetching_it(store: Store, published: dict[str, str]) -> None:
    manifest = SimpleNamespace(base_model_source=published["source"], base_model_checksum=published["checksum"])
    store.read.clear()
    assert load_trained_model.entrypoint(SimpleNamespace(manifest=manifest)) == published
    assert store.read == [PUBLISHED_FILE]


@pytest.mark.parametrize("name", ["training.train_agent", "evaluation.run_inference", "evaluation.ask_production"])
def test_every_step_that_needs_the_files_takes_the_published_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Exception):
        pass

    def ask(source: str, checksum: str, **_: object) -> None:
        raise Asked(source, checksum)

    module = importlib.import_module(f"steps.{name}")
    asking = training_run if name == "training.train_agent" else rows
    monkeypatch.setattr(asking, "base_model_files", ask)
    manifest = SimpleNamespace(config={}, base_model_source="owner/model", base_model_checksum="c")
    checkpoint = SimpleNamespace(manifest=manifest, path=Path("adapter"))
    base = {"id": "model", "source": "owner/model", "checksum": "c", "content": "k"}
    config: Any = SimpleNamespace(eval_limit=1, baseline_model=None, require_judge=lambda: None)
    inputs: dict[str, Any] = {"config": config, "database": None, "scenarios": []}
    if name == "training.train_agent":
        inputs["config"] = TrainingConfig()
    else:
        for found in ("select_questions", "open_judge", "open_journal"):
            monkeypatch.setattr(module, found, lambda *_, **__: ["something"])
    if name == "evaluation.ask_production":
        monkeypatch.setattr(module, "find_checkpoint", lambda _: SimpleNamespace(checkpoint=checkpoint))
        inputs |= {"production": "id"}
    else:
        inputs |= {"base": base} | ({"run_key": "r1"} if name == "training.train_agent" else {"checkpoint": checkpoint})
    with pytest.raises(Asked, match="owner/model.*c"):
        getattr(module, module.__name__.rpartition(".")[2]).entrypoint(**inputs)
