"""llama.cpp reads an exported GGUF file as this project reads the checkpoint: weights, tokens, chat template, replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import run
from agent.prompts import load
from environment.tools import tool_schemas
from tests.tiny_checkpoint import tiny_checkpoint
from training.backends.prompt_template import load_tokenizer
from training.checkpoint import Checkpoint

pytestmark = pytest.mark.service

MESSAGES = [
    {"role": "system", "content": load("system")},
    {"role": "user", "content": "Who wrote\n\n  on 12 May, it's 3.5?"},
]


@pytest.fixture(autouse=True)
def own_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' own attention masks: art replaces them by a function of an older version."""
    from art.transformers.patches import _preprocess_mask_arguments

    monkeypatch.setattr("transformers.masking_utils._preprocess_mask_arguments", _preprocess_mask_arguments)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return tiny_checkpoint(tmp_path, seed=1)


def export(checkpoint: Checkpoint, to: Path) -> int:
    return run.main(["--pipeline", "export", "--format", "gguf", "--checkpoint", str(checkpoint.path), "--to", str(to)])


def no_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_files_have_the_merged_weights_and_the_tokenizer(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_tool(monkeypatch, tmp_path)
    out = tmp_path / "out"
    assert export(checkpoint, out) == 0
    assert capsys.readouterr().out.count("no Q4_K_M file: llama.cpp's llama-quantize") == 1
    names = {file.name for file in out.iterdir()}
    assert names == {"Modelfile", "README.md", "manifest.json", "model-f16.gguf", "model-q8_0.gguf"}
    words = ["--pipeline", "export", "--merged", "--checkpoint", str(checkpoint.path), "--to", str(tmp_path / "merged")]
    assert run.main(words) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    for file, closeness in (("model-f16.gguf", 1e-3), ("model-q8_0.gguf", 1e-2)):
        read = AutoModelForCausalLM.from_pretrained(out, gguf_file=file).state_dict()
        assert read.keys() == merged.keys()
        for name, tensor in merged.items():
            assert (read[name] - tensor).abs().max() <= closeness * tensor.abs().max(), (file, name)
    ours = AutoTokenizer.from_pretrained(tmp_path / "merged")
    theirs = AutoTokenizer.from_pretrained(out, gguf_file="model-f16.gguf")
    assert theirs.chat_template == ours.chat_template
    card = (out / "README.md").read_text()
    assert "ollama create email-agent -f Modelfile" in card and 'Llama("model-f16.gguf"' in card


def test_llama_cpp_quantizes_where_it_is_installed(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tmp_path / "bin" / "llama-quantize"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nread -r head < "$1"; test "$3" = Q4_K_M && echo "quantized" > "$2"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    assert export(checkpoint, tmp_path / "out") == 0
    assert (tmp_path / "out" / "model-q4_k_m.gguf").read_text() == "quantized\n"
    tool.write_text("#!/bin/sh\necho loading >&2; echo 'unknown format' >&2; exit 3\n")
    capsys.readouterr()
    assert export(checkpoint, tmp_path / "other") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: export: unknown format (")
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob(".*.partial"))


def test_the_modelfile_composes_the_prompt_of_the_training(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert export(checkpoint, tmp_path / "out") == 0
    modelfile = (tmp_path / "out" / "Modelfile").read_text()
    system = modelfile.split('SYSTEM """')[1].split('"""')[0]
    tokenizer = load_tokenizer(tmp_path / "base-1")
    turns = [*MESSAGES, {"role": "assistant", "content": "call"}, {"role": "tool", "content": "found"}]
    expected = tokenizer.apply_chat_template(turns, tool_schemas(), tokenize=False, add_generation_prompt=True)
    assert composed(modelfile, [{"role": "system", "content": system}, *turns[1:]]) == expected
    assert "search_inbox_tool" in system and "PARAMETER stop <|im_end|>\n" in modelfile


def composed(modelfile: str, messages: list[dict[str, str]]) -> str:
    """Return what Ollama's template makes of `messages`, by the little of Go's language that it uses."""
    template = modelfile.split('TEMPLATE """')[1].split('"""')[0]
    body, reply = template.removeprefix("{{ range .Messages }}{{ ").rsplit("{{ end }}{{ end }}", 1)
    cases = dict(case.split('" }}') for case in body.removeprefix('if eq .Role "').split('{{ else if eq .Role "'))
    return "".join(cases[turn["role"]].replace("{{ .Content }}", turn["content"]) for turn in messages) + reply


def test_what_llama_cpp_would_read_otherwise_is_refused(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "base-1" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["pre_tokenizer"]["use_regex"] = False
    file.write_text(json.dumps(tokenizer))
    assert export(checkpoint, tmp_path / "out") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "llama.cpp is not known to split text as its tokenizer does" in error
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*.partial"))
    with pytest.raises(SystemExit):
        run.main(["--pipeline", "train", "--format", "gguf"])
    assert "--format is for --pipeline export" in capsys.readouterr().err


def test_llama_cpp_gives_the_same_tokens_and_the_same_reply(checkpoint: Checkpoint, tmp_path: Path) -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp's binding has wheels for Linux on x86-64 only")
    assert export(checkpoint, tmp_path / "out") == 0
    base = tmp_path / "base-1"
    tokenizer = load_tokenizer(base)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(tmp_path / "out" / "model-f16.gguf")
    parameters.n_ctx, parameters.n_parallel, parameters.use_jinja = 4096, 1, True
    server = xllamacpp.Server(parameters)

    def asked(path: str, **request: Any) -> Any:
        return httpx.post(f"{server.listening_address}/{path}", json=request, timeout=60, trust_env=False).json()

    tools = tool_schemas()
    ids = tokenizer.apply_chat_template(MESSAGES, tools, add_generation_prompt=True)
    prompt = asked("apply-template", messages=MESSAGES, tools=tools)["prompt"]
    assert asked("tokenize", content=prompt, add_special=False, parse_special=True)["tokens"] == ids
    model = AutoModelForCausalLM.from_pretrained(base)
    model.load_state_dict(
        AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file="model-f16.gguf").state_dict()
    )
    ours = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :].tolist()
    theirs = asked("completion", prompt=ids, n_predict=8, temperature=0.0, return_tokens=True)
    assert theirs["tokens"] == ours
