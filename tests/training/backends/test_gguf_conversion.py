"""A GGUF file becomes the model that transformers makes of it, or is refused with one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, RopeScalingType
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.training.backends.torch.tiny_models import save_tiny_model
from training.backends import gguf_conversion
from training.backends.base_model import resolve_base_model
from training.backends.gguf_conversion import convert_gguf
from training.backends.gguf_writing import write_gguf
from training.errors import BadInput

pytestmark = pytest.mark.service


@pytest.fixture
def quantised(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A tiny model of the family in the parameter, quantised as Q8_0."""
    model = save_tiny_model(tmp_path / "original", getattr(request, "param", "qwen2"), hidden=96)
    write_gguf(model, tmp_path / "tiny.Q8_0.gguf", "q8_0")
    return tmp_path / "tiny.Q8_0.gguf"


@pytest.mark.parametrize("quantised", ["llama", "qwen2"], indirect=True)
def test_weights_are_those_that_transformers_reads(
    quantised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_conversion, "_SHARD_BYTES", 60_000)
    monkeypatch.setattr(gguf_conversion, "_BLOCK_NUMBERS", 1_000)
    convert_gguf(quantised, tmp_path / "converted", torch.bfloat16, None)
    expected = AutoModelForCausalLM.from_pretrained(quantised.parent, gguf_file=quantised.name, dtype=torch.float32)
    files = sorted((tmp_path / "converted").glob("*.safetensors"))
    assert len(files) > 2
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    wanted = {name: tensor.to(torch.bfloat16) for name, tensor in expected.state_dict().items()}
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "converted")
    assert loaded.dtype == torch.bfloat16 and torch.equal(
        loaded.state_dict()["lm_head.weight"], wanted["lm_head.weight"]
    )


def test_head_equal_to_the_embeddings_is_kept_once(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "original", "qwen2", hidden=96)
    weights = AutoModelForCausalLM.from_pretrained(model)
    weights.lm_head.weight.data.copy_(weights.model.embed_tokens.weight.data)
    weights.save_pretrained(model)
    write_gguf(model, tmp_path / "tiny.gguf", "q8_0")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "converted", torch.bfloat16, None)
    assert "lm_head.weight" not in load_file(tmp_path / "converted" / "model.safetensors")
    assert json.loads((tmp_path / "converted" / "config.json").read_text())["tie_word_embeddings"] is True


def test_a_local_file_is_converted_once_with_its_own_template(quantised: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    files = resolve_base_model(str(quantised), tmp_path / "models", progress=stages.append)
    assert stages and resolve_base_model(str(quantised), tmp_path / "models") == files
    original = AutoTokenizer.from_pretrained(tmp_path / "original")
    converted = AutoTokenizer.from_pretrained(files.path)
    assert converted.chat_template == original.chat_template
    text = "<|im_start|>user\nsearch the mails<|im_end|>"
    assert converted.encode(text) == original.encode(text)
    with pytest.raises(BadInput, match="no file") as refusal:
        resolve_base_model(str(tmp_path / "absent.gguf"), tmp_path / "models")
    quantised.write_bytes(quantised.read_bytes()[:20_000])
    with pytest.raises(BadInput, match="no GGUF file or is cut off") as refusal:
        resolve_base_model(str(quantised), tmp_path / "models")
    assert "\n" not in str(refusal.value)
    assert [folder for folder in (tmp_path / "models").iterdir() if folder.is_dir()] == [files.path]


@pytest.mark.parametrize("trained", [False, True])
def test_marks_that_the_model_cannot_tell_apart_are_ordinary_text(tmp_path: Path, trained: bool) -> None:
    model = save_tiny_model(tmp_path / "original", "qwen2", hidden=96)
    tokenizer = AutoTokenizer.from_pretrained(model)
    marks = ["<tool_call>", "</tool_call>"]
    tokenizer.add_tokens([*marks, "<last>"])
    tokenizer.save_pretrained(model)
    weights = AutoModelForCausalLM.from_pretrained(model)
    weights.resize_token_embeddings(len(tokenizer))
    ids = tokenizer.convert_tokens_to_ids(marks)
    weights.model.embed_tokens.weight.data[ids] = torch.randn(2, 96) if trained else torch.ones(2, 96)
    weights.save_pretrained(model)
    write_gguf(model, tmp_path / "tiny.gguf", "q8_0")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "converted", torch.bfloat16, None)
    text = '<tool_call>{"name": "search"}</tool_call><|im_end|>'
    converted = AutoTokenizer.from_pretrained(tmp_path / "converted")
    found = converted.encode(text)
    assert converted.decode(found) == text and found[-1] == converted.eos_token_id
    assert set(ids).issubset(found) if trained else set(ids).isdisjoint(found)


def test_padding_at_the_end_of_the_vocabulary_is_a_token_that_text_can_name(tmp_path: Path) -> None:
    """ART puts the last token in the place of a reply, as text, and looks for it among the ids."""
    model = save_tiny_model(tmp_path / "original", "qwen2", hidden=96)
    weights = AutoModelForCausalLM.from_pretrained(model)
    size = weights.config.vocab_size
    weights.resize_token_embeddings(size + 2)
    weights.save_pretrained(model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {f"[PAD{number}]": number for number in (size, size + 1)}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_gguf(model, tmp_path / "tiny.gguf", "q8_0")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "converted", torch.bfloat16, None)
    converted = AutoTokenizer.from_pretrained(tmp_path / "converted")
    last = converted.vocab_size - 1
    assert last == size + 1
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": converted.decode([last])}]
    assert converted.apply_chat_template(messages)["input_ids"].count(last) == 1
    assert converted.encode("search the mails") == AutoTokenizer.from_pretrained(model).encode("search the mails")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_folder_of_an_earlier_conversion_is_made_again(
    quantised: Path, tmp_path: Path, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "training.backends.model_sources.gguf.run_conversion",  # in this process, which has torch already
        lambda gguf, target, origin: convert_gguf(gguf, target, getattr(torch, origin.dtype), None),
    )
    files = resolve_base_model(str(quantised), tmp_path / "models")
    manifest = json.loads((files.path / "manifest.json").read_text())
    del manifest["conversion"]
    (files.path / "manifest.json").write_text("{" if damaged else json.dumps(manifest))
    stages: list[str] = []
    assert resolve_base_model(str(quantised), tmp_path / "models", progress=stages.append) == files and stages


def test_full_disk_is_said_before_anything_is_written(
    quantised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(BadInput, match="no space left .* the converted weights take"):
        convert_gguf(quantised, tmp_path / "converted", torch.bfloat16, None)
    assert not (tmp_path / "converted").exists()


def test_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    for architecture, values, message in (
        ("phi3", np.ones((2, 32), np.float32), "architecture 'phi3'; supported: llama, qwen2"),
        ("llama", np.ones((2, 32), np.int8), "quantised as I8"),
        ("qwen2", np.ones((2, 32), np.float32), "scales its positions"),
    ):
        file = tmp_path / f"{architecture}.gguf"
        writer = GGUFWriter(file, architecture)
        writer.add_tensor("token_embd.weight", values)
        if architecture == "qwen2":
            writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(BadInput, match=message):
            convert_gguf(file, tmp_path / "converted", torch.bfloat16, None)
    assert not (tmp_path / "converted").exists()


@pytest.mark.parametrize(
    ("template", "message"),
    [("{{ messages[0].content }}", "has a chat template without tools"), (None, "has no chat template")],
)
def test_model_without_tools_is_refused(tmp_path: Path, template: str | None, message: str) -> None:
    model = save_tiny_model(tmp_path / "original", "qwen2", hidden=96)
    (model / "chat_template.jinja").unlink()
    if template:
        (model / "chat_template.jinja").write_text(template)
    write_gguf(model, tmp_path / "tiny.gguf", "q8_0")
    with pytest.raises(BadInput, match=message):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "converted", torch.bfloat16, None)
    assert not (tmp_path / "converted").exists()
