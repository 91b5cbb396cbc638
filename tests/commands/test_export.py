"""PEFT, transformers and this project can load an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import pytest
import torch
from filelock import FileLock
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from zenml import Model, pipeline, step

import run
from agent.prompts import load
from commands.export import run_export
from configs.config import Config
from configs.schema import EvaluationConfig
from materializers.checkpoint import CheckpointMaterializer
from steps import exported_model
from steps.artifact_names import CHECKPOINT, METRICS
from tests.tiny_checkpoint import tiny_checkpoint
from training.checkpoint import ADAPTER_WEIGHTS, Checkpoint
from training.errors import BadInput

pytestmark = pytest.mark.service

IDS = torch.tensor([[5, 17, 44, 101, 9]])
ROW = {
    "n": 40,
    "errors": 1,
    "accuracy": 0.5,
    "ci95": [0.35, 0.65],
    "answer_rate": 0.9,
    "source_recall": 0.75,
    "turns": 3.2,
}
SUMMARY = {"n": 41, "policies": {"trained": ROW}, "baselines": {"search_and_quote": ROW}}


# ZenML finds steps and materializers as names of a module.
@step(output_materializers=CheckpointMaterializer)
def train(folder: str) -> Annotated[Checkpoint, CHECKPOINT]:
    return Checkpoint.load(Path(folder))


@step
def evaluate(config: EvaluationConfig) -> Annotated[dict[str, Any], METRICS]:
    return SUMMARY


@pipeline(enable_cache=False)
def evaluated(folder: str) -> None:
    train(folder=folder)
    evaluate(config=EvaluationConfig(judge="llm", judge_model="openai/one"))


@pytest.fixture(autouse=True)
def own_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' own attention masks: art replaces them by a function of an older version."""
    from art.transformers.patches import _preprocess_mask_arguments

    monkeypatch.setattr("transformers.masking_utils._preprocess_mask_arguments", _preprocess_mask_arguments)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return tiny_checkpoint(
        tmp_path, seed=1, data={"scenarios": "00000000-0000-0000-0000-000000000001"}, scoring="ruler"
    )


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def with_adapter(base: Path, adapter: Path) -> torch.Tensor:
    return logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter))


def test_an_adapter_loads_with_peft_and_with_this_project(checkpoint: Checkpoint, tmp_path: Path) -> None:
    base, out = tmp_path / "base-1", tmp_path / "exported"
    run_export(out, Config(), form="adapter", checkpoint=str(checkpoint.path), base_model=None)
    assert torch.allclose(with_adapter(base, out), with_adapter(base, checkpoint.path), atol=1e-2)
    exported = Checkpoint.load(out).manifest
    of_files = {"adapter_checksum", "adapter_config_checksum"}
    assert exported.model_dump(exclude=of_files) == checkpoint.manifest.model_dump(exclude=of_files)
    weights = load_file(out / ADAPTER_WEIGHTS)
    for name, tensor in load_file(checkpoint.path / ADAPTER_WEIGHTS).items():
        assert torch.equal(weights[name], tensor.to(torch.float16))
    assert str(tmp_path) not in (out / "adapter_config.json").read_text()
    tools = {"tools": exported_model.tool_schemas(), "tokenize": False}
    asked = [{"role": "user", "content": "Who?"}]
    rendered = [AutoTokenizer.from_pretrained(folder).apply_chat_template(asked, **tools) for folder in (base, out)]
    assert rendered[0] == rendered[1] and "search_inbox_tool" in rendered[0]
    card = (out / "README.md").read_text()
    assert "vllm serve base-1 --enable-lora --max-lora-rank 8 --lora-modules email-agent=. " in card
    assert exported.adapter_checksum in card
    assert " mails per search and " in card and "reinforcement-learning" not in card, "it may be a warm start alone"
    assert "This checkpoint was not evaluated." in card and "(not in this ZenML store)" in card


def test_whoever_may_read_the_folder_may_read_the_weights(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for form, weights in (("adapter", "adapter_model.safetensors"), ("merged", "model.safetensors")):
        folder = tmp_path / weights
        run_export(folder, Config(), form=form, checkpoint=str(checkpoint.path), base_model=None)
        assert (folder / weights).stat().st_mode == (folder / "manifest.json").stat().st_mode


def test_a_merged_model_loads_with_transformers_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    base, out = tmp_path / "base-1", tmp_path / "folder" / "merged"
    run_export(out, Config(), form="merged", checkpoint=str(checkpoint.path), base_model=None)
    merged = logits(AutoModelForCausalLM.from_pretrained(out))
    assert torch.allclose(merged, with_adapter(base, checkpoint.path), atol=1e-4)
    assert not torch.allclose(merged, logits(AutoModelForCausalLM.from_pretrained(base)), atol=1e-2)
    assert not (out / "adapter_config.json").exists() and list(out.glob("*.safetensors"))
    assert "vllm serve . --served-model-name email-agent" in (out / "README.md").read_text()


def test_the_card_has_the_evaluation_of_this_adapter_only(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated.with_options(model=Model(name="exported", version="tiny-1"))(folder=str(checkpoint.path))
    agent = exported_model.Agent("E-mail search agent", "exported")
    monkeypatch.setattr(exported_model, "MAIL_AGENT", agent)
    card = exported_model.card_of(checkpoint, checkpoint.manifest, "adapter", agent)
    assert "41 held-out questions, answers judged by openai/one:\n" in card
    assert "| trained | 40 | 1 | 50.0% (35.0-65.0%) | 90.0% | 75.0% | 3.2 |" in card
    assert "exported, version tiny-1" in card and "scoring ruler" in card and load("system") in card
    assert checkpoint.manifest.base_model_checksum in card and "## Intended use" in card
    of_task = exported_model.Agent("Coding agent", "exported")
    card = exported_model.card_of(checkpoint, checkpoint.manifest, "adapter", of_task)
    assert "41 held-out scenarios:\n" in card and "judged" not in card, "the task's own code decides"
    other = tiny_checkpoint(tmp_path, seed=2)
    other.manifest = other.manifest.model_copy(update={"name": "tiny-1"})
    assert "not evaluated" in exported_model.card_of(other, other.manifest, "adapter", agent)


def test_nothing_is_overwritten_or_half_written(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exported"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    words = ["--pipeline", "export", "--checkpoint", str(checkpoint.path)]
    assert run.main([*words, "--to", str(out)]) == 2
    assert "is not empty: name a new folder" in capsys.readouterr().err
    for wrong, message in (
        (words, "needs --to FOLDER"),
        (["--pipeline", "train", "--to", "x"], "--to is for --pipeline export"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run.main(wrong)
        assert stopped.value.code == 2 and message in capsys.readouterr().err
    for full in (
        OSError(28, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ):
        monkeypatch.setattr(exported_model, "write_merged", Mock(side_effect=full))
        assert run.main([*words, "--merged", "--to", str(tmp_path / "new")]) == 2
        assert "no space left" in capsys.readouterr().err
        assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".new*"))


def test_what_a_killed_export_left_goes_and_another_export_is_not_disturbed(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    out, left = tmp_path / "exported", tmp_path / ".exported.partial"
    (left / "merged").mkdir(parents=True)
    (left / "merged" / "half.safetensors").write_text("half")

    def export() -> None:
        run_export(out, Config(), form="adapter", checkpoint=str(checkpoint.path), base_model=None)

    with FileLock(tmp_path / ".exported.lock"), pytest.raises(BadInput, match="is being written by another export"):
        export()
    assert (left / "merged" / "half.safetensors").exists()
    export()
    assert (out / "README.md").exists() and not (out / "merged").exists()
    assert not list(tmp_path.glob(".exported*"))


def test_a_folder_that_cannot_be_made_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="^--to .*/file/x cannot be made: Not a directory$"):
        run_export(tmp_path / "file" / "x", Config(), form="adapter", checkpoint=str(checkpoint.path), base_model=None)


@pytest.mark.parametrize("left", [False, True], ids=["empty", "with what a killed export left"])
def test_a_folder_that_may_be_a_mount_point_is_filled(
    left: bool, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    before = mounted.stat().st_ino
    if left:
        (mounted / ".mounted.partial").mkdir()
        (mounted / ".mounted.partial" / "half.safetensors").write_text("half")
        (mounted / ".mounted.lock").touch()
        monkeypatch.chdir(mounted)  # it cannot be replaced either
    to = "." if left else str(mounted)
    assert run.main(["--pipeline", "export", "--checkpoint", str(checkpoint.path), "--to", to]) == 0
    assert mounted.stat().st_ino == before
    assert Checkpoint.load(mounted).manifest.name == "tiny-1" and (mounted / "README.md").is_file()
    assert not list(mounted.glob(".*")) and not list(mounted.glob("half*")) and not list(tmp_path.glob(".mounted*"))
