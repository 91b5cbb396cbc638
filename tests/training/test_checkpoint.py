from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.small_adapter import MODULE, write_small_adapter
from training.backends.model_sources.folder import BaseModelFiles
from training.checkpoint import ADAPTER_CONFIG, ADAPTER_WEIGHTS, FILES, MANIFEST, Checkpoint
from training.errors import BadInput


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint.from_adapter(
        write_small_adapter(tmp_path / "adapter"),
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
    write_small_adapter(checkpoint.path, value=2.0)
    described = checkpoint.manifest.model_dump(exclude={"adapter_checksum", "adapter_config_checksum"})
    later = Checkpoint.from_adapter(checkpoint.path, **described)
    later.save(target)
    assert Checkpoint.load(target).manifest.adapter_checksum != checkpoint.manifest.adapter_checksum

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


def _config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / ADAPTER_CONFIG
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def _weights(**tensors: Any) -> Callable[[Path], None]:
    """Replace one of the two matrices, or leave it out."""

    def change(folder: Path) -> None:
        weights = load_file(folder / ADAPTER_WEIGHTS)
        for side, tensor in tensors.items():
            weights[f"{MODULE}.lora_{side}.weight"] = tensor
        save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / ADAPTER_WEIGHTS)

    return change


def _holed(number: float, dtype: torch.dtype) -> torch.Tensor:
    matrix = torch.ones(2, 3, dtype=dtype)
    matrix[1, 2] = number
    return matrix


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a cut configuration": (lambda folder: _cut(folder / ADAPTER_CONFIG), "adapter_config.json is no JSON"),
    "an empty configuration": (lambda folder: (folder / ADAPTER_CONFIG).write_text(""), "is no JSON"),
    "no text": (lambda folder: (folder / ADAPTER_CONFIG).write_bytes(b"\xff\xfe{}"), "is no JSON"),
    "a list": (lambda folder: (folder / ADAPTER_CONFIG).write_text("[]"), "holds no settings"),
    "no rank": (_config(r=None), "rank r=None"),
    "a rank of zero": (_config(r=0), "rank r=0"),
    "a rank of no number": (_config(r="2"), "rank r='2'"),
    "another rank in the configuration": (_config(r=3), "has rank 2 in .*lora_A.*configuration says 3"),
    "another rank in the weights": (_weights(B=torch.ones(4, 3)), "has rank 3 in .*lora_B"),
    "no scale": (_config(lora_alpha=None), "lora_alpha=None"),
    "an infinite scale": (_config(lora_alpha=float("inf")), "lora_alpha=inf"),
    "a scale of NaN": (_config(lora_alpha=float("nan")), "lora_alpha=nan"),
    "cut weights": (lambda folder: _cut(folder / ADAPTER_WEIGHTS), "is no safetensors file"),
    "empty weights": (lambda folder: (folder / ADAPTER_WEIGHTS).write_bytes(b""), "is no safetensors file"),
    "one matrix only": (_weights(A=None), "one of the two matrices"),
    "no matrices": (_weights(A=None, B=None), "no LoRA matrices"),
    "a matrix of one dimension": (_weights(A=torch.ones(6)), "has rank None in"),
    **{
        f"{number} as {dtype}": (_weights(A=_holed(number, dtype)), "NaN or infinite values in")
        for number in (float("nan"), float("inf"), float("-inf"))
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    },
}


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_could_only_answer_noise_is_refused_whatever_the_checksums_say(
    checkpoint: Checkpoint, damage: str
) -> None:
    change, said = DAMAGES[damage]
    change(checkpoint.path)
    described = checkpoint.manifest.model_dump(exclude={"adapter_checksum", "adapter_config_checksum"})
    folder = Checkpoint.from_adapter(checkpoint.path, **described).save(checkpoint.path.with_name("stored")).path
    with pytest.raises(BadInput, match=said) as refused:
        Checkpoint.load(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [ADAPTER_CONFIG, ADAPTER_WEIGHTS])
def test_a_changed_file_is_refused_although_it_is_sound(checkpoint: Checkpoint, tmp_path: Path, name: str) -> None:
    folder = checkpoint.save(tmp_path / "stored").path
    write_small_adapter(tmp_path / "other", value=2.0, lora_alpha=8.0)
    shutil.copy(tmp_path / "other" / name, folder)
    with pytest.raises(BadInput, match=f"{name} is not what manifest.json describes"):
        Checkpoint.load(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["adapter_config_checksum"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    if name == ADAPTER_CONFIG:
        Checkpoint.load(folder)  # a checkpoint of before: its configuration has no checksum


def test_sound_adapters_of_other_kinds_are_accepted(checkpoint: Checkpoint, tmp_path: Path) -> None:
    described = checkpoint.manifest.model_dump(exclude={"adapter_checksum", "adapter_config_checksum"})
    for number, (config, tensors) in enumerate(
        [
            ({"rank_pattern": {"q_proj": 5}}, {"A": torch.ones(5, 3), "B": torch.ones(4, 5)}),
            ({"target_parameters": ["experts"]}, {"A": torch.ones(8, 3), "B": torch.ones(4, 8)}),
            ({}, {"A": torch.ones(2, 3, dtype=torch.bfloat16)}),
        ]
    ):
        folder = write_small_adapter(tmp_path / str(number), **config)
        _weights(**tensors)(folder)
        Checkpoint.load(Checkpoint.from_adapter(folder, **described).save(tmp_path / f"stored-{number}").path)


def test_another_base_model_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    def base(name: str, checksum: str, **shapes: tuple[int, int]) -> BaseModelFiles:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {f"model.layers.0.self_attn.{key}.weight": torch.ones(shape) for key, shape in shapes.items()},
            folder / "m.safetensors",
        )
        return BaseModelFiles(id=name, path=folder, checksum=checksum * 64)

    checkpoint.require_base(base("a renamed copy", "a", q_proj=(4, 3)))
    checkpoint.require_base(base("of other names", "a", wq=(9, 9)))
    for shape in ((4, 5), (5, 3)):
        with pytest.raises(
            BadInput, match=f"does not fit owner/model: .*q_proj.* the base's weights are {shape[0]} x {shape[1]}"
        ):
            checkpoint.require_base(base("owner/model", "a", q_proj=shape))
    with pytest.raises(BadInput, match="set base_model to package==1.0"):
        checkpoint.require_base(base("owner/other", "b", q_proj=(4, 3)))
    with pytest.raises(BadInput, match="other weights of owner/model or another form of its tool calls"):
        checkpoint.require_base(base("owner/model", "b", q_proj=(4, 3)))
