"""The base model is part of what a run is: changed weights, tokenizer, template or configuration make another run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from safetensors.numpy import load_file, save_file

from commands import learn_loop, tasks, train
from commands.data import DataRun
from commands.learn_loop import learn_loop_config
from configs.schema import TrainingConfig
from tasks.coding.plugin import PLUGIN
from tasks.coding.settings import CodingSettings
from training.backends.base_model import resolve_base_model
from training.backends.model_sources import gguf
from training.errors import BadInput
from training.record.experiment import Experiment

pytestmark = pytest.mark.service

DATA = DataRun(database=UUID(int=1), scenarios=UUID(int=2))


def _other_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[min(weights)] = weights[min(weights)] + 1
    save_file(weights, folder / "model.safetensors")


def _edited(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().rstrip() + "\n\n")


CHANGES: dict[str, Callable[[Path], None]] = {
    "weights": _other_weights,
    **{
        name: _edited(name)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json")
    },
    "a file that was not there": lambda folder: (folder / "generation_config.json").write_text('{"top_k": 1}'),
    "a further template": lambda folder: _edited_template(folder / "additional_chat_templates"),
}


def _edited_template(folder: Path) -> None:
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("{{ messages }}")


@pytest.fixture
def base(tiny_base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_base, tmp_path / "base"))


@pytest.mark.parametrize("changed", CHANGES)
def test_changed_files_of_the_base_model_are_another_run(base: Path, changed: str) -> None:
    def key() -> str:
        return train.run_key(TrainingConfig(), DATA, train.base_model_content(str(base), here=True))

    before = key()
    (base / "unrelated.md").write_text("notes")
    os.utime(base / "config.json")
    assert key() == before, "what nothing reads is no part of it"
    CHANGES[changed](base)
    assert key() != before


def test_another_base_model_is_another_run_of_the_other_tasks() -> None:
    training, chosen = TrainingConfig(), CodingSettings()
    assert tasks.run_key(PLUGIN, training, chosen, "data", "one") != tasks.run_key(
        PLUGIN, training, chosen, "data", "other"
    )
    loop = learn_loop_config(None, [])
    assert learn_loop.run_key(loop, "one") != learn_loop.run_key(loop, "other")


def test_the_files_of_another_machine_are_not_looked_at() -> None:
    assert train.base_model_content("owner/only-there", here=False) is None


def _experiment(base: Path, **changes: object) -> Experiment:
    files = resolve_base_model(str(base), base)
    experiment = Experiment(
        name="r1",
        run="r1",
        config=TrainingConfig().model_dump(mode="json"),
        git_revision=None,
        code=train.training_code(),
        data={"a": str(DATA.database), "b": str(DATA.scenarios)},
        base_model=files.id,
        base_model_checksum=files.checksum,
        base_model_content=files.content(),
        created=datetime(2026, 11, 21, tzinfo=UTC),
    )
    return experiment.model_copy(update=changes)


@pytest.mark.parametrize("changed", CHANGES)
def test_a_run_is_not_continued_on_another_base_model(base: Path, tmp_path: Path, changed: str) -> None:
    runs = tmp_path / "runs"
    began = _experiment(base)
    began.save(runs / f"r1-{began.base_model_checksum[:8]}")
    CHANGES[changed](base)
    now = _experiment(base)
    elsewhere = tmp_path / "pod" / "r1-new"
    for folder, published in ((runs / f"r1-{now.base_model_checksum[:8]}", []), (elsewhere, [began])):
        with pytest.raises(BadInput, match="^run r1 began on other files of base .*--no-cache"):
            now.resuming(folder, published)


def test_runs_of_two_schedules_may_have_one_number(base: Path, tmp_path: Path) -> None:
    began = _experiment(base).model_copy(update={"run": "3", "config": {"task": "coding"}})
    began.save(tmp_path / "runs" / "3-aaaaaaaa-1")
    _other_weights(base)
    now = _experiment(base).model_copy(update={"run": "3"})
    assert now.resuming(tmp_path / "runs" / "3-bbbbbbbb-1", [began]) == now


def test_a_run_that_recorded_the_weights_only_continues_on_these_weights(base: Path, tmp_path: Path) -> None:
    began = _experiment(base, base_model_content=None)
    began.save(tmp_path / "runs" / "r1-1")
    now = _experiment(base)
    assert now.resuming(tmp_path / "runs" / "r1-1").created == began.created
    _other_weights(base)
    with pytest.raises(BadInput, match="other files of base"):
        _experiment(base).resuming(tmp_path / "runs" / "r1-2")


@pytest.mark.parametrize(
    ("began", "said"),
    [
        ({"stopped": "max_steps reached", "base_model_content": None}, "is finished and began with a key without the"),
        ({"stopped": "max_steps reached", "base_model_content": "0" * 64}, "began with other files of the base model"),
        ({"stopped": "max_steps reached", "code": "then"}, "is finished and began with other code"),
        ({"base_model_content": None}, "is unfinished and began with a key without the base model"),
        ({"base_model_content": None, "run": "r2"}, None),
        ({"data": {}, "base_model_content": None}, None),
    ],
)
def test_runs_that_are_not_reused_are_named(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: dict[str, object], said: str | None
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(train, "say", lines.append)
    monkeypatch.setattr(train, "RUNS", tmp_path / "runs")
    experiment = _experiment(base, **began)
    experiment.save(tmp_path / "runs" / "r1-1")
    content = resolve_base_model(str(base), tmp_path).content()
    train._say_if_begun_otherwise(TrainingConfig(), DATA, content, "r2")
    if said is None:
        assert not lines
        return
    [line] = lines
    assert said in line and "this is a new run" in line
    assert ("--resume r1" in line) == (experiment.stopped is None) and "--new-code" not in line


def test_a_converted_model_whose_weights_were_replaced_is_made_again(base: Path, tmp_path: Path) -> None:
    origin = gguf.GgufOrigin(id="m", source="m.gguf", sha256="1" * 64, license="x", chat_template=None, dtype="float32")
    manifest = {"conversion": 2, "id": "m", "source": "m.gguf", "source_sha256": "1" * 64, "license": "x"}
    manifest |= {"chat_template_sha256": None, "checksum": resolve_base_model(str(base), tmp_path).checksum}
    manifest["sizes"] = {file.name: file.stat().st_size for file in base.iterdir()}
    (base / gguf.MANIFEST).write_text(json.dumps(manifest))
    assert gguf.finished(origin, base) is not None
    later = (base / gguf.MANIFEST).stat().st_mtime + 10
    os.utime(base / "model.safetensors", (later, later))
    assert gguf.finished(origin, base) is not None, "a copied folder has new times"
    _other_weights(base)
    os.utime(base / "model.safetensors", (later, later))
    assert gguf.finished(origin, base) is None
