"""Inputs of the benchmark's sides: the arithmetic, the split of conversations into turns, llama.cpp's weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from benchmarks.backend import _conversation
from benchmarks.backend_sides.job import Conversation, Job, ModelSize, Turn, Work, least_rollout_work
from tests.training.backends.torch.tiny_models import save_tiny_model
from training.backends.gguf_writing import write_gguf
from training.backends.torch import TorchSettings
from training.backends.torch.adapter_trainer import AdapterTrainer, target_logprobs
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.token_tree import Sample
from training.errors import BadInput

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "llama")


def test_the_arithmetic_is_what_pytorch_counts(model_dir: Path) -> None:
    settings = TorchSettings(device="cpu", threads=1, matmul_dtype="float32", lora_rank=8)
    network = PolicyNetwork(model_dir, settings)
    trainer = AdapterTrainer(network, settings, None)
    sample = Sample(torch.arange(3, 103).numpy(), torch.arange(60, 100).numpy())
    with network.training_adapter(trainer.adapter), FlopCounterMode(display=False) as counted:
        logprobs, _ = target_logprobs(network, [sample], grad_from=0)
        logprobs.sum().backward()
    products = counted.get_flop_counts()["Global"]
    in_products = sum(n for operation, n in products.items() if "attention" not in str(operation))
    expected = ModelSize.of(model_dir).update_flops(Work(tokens=99, pairs=0, head_rows=40), lora_rank=8)
    # PyTorch leaves out the first layer's input, which needs no gradient.
    assert in_products == pytest.approx(expected, rel=0.1)


def test_no_token_of_a_group_is_counted_twice() -> None:
    turns = [Turn([7, 8], [9, 9, 9]), Turn([7], [])]
    work = least_rollout_work([[Conversation([1, 2, 3, 4], turns)] * 3])
    # Openings 4, then 5 more tokens each (the last sampled one is not computed), 3 sampled.
    assert work == Work(tokens=4 + 3 * 5, pairs=10 + 3 * (5 + 6 + 7 + 8 + 9), head_rows=9)


def test_a_labelled_demonstration_becomes_turns_and_back() -> None:
    ids = list(range(12))
    labels = [-100, -100, 2, 3, 4, -100, -100, 7, 8, -100, 10, -100]
    conversation = _conversation(ids, labels)
    assert conversation == Conversation([0, 1], [Turn([2, 3, 4], [5, 6]), Turn([7, 8], [9]), Turn([10], [])])
    assert conversation.ids == ids[:11]
    assert [i for i, label in enumerate(conversation.labels) if label] == [label for label in labels if label >= 0]


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    conversation = Conversation([1], [Turn([2], [])])
    job = Job("model", "float32", 1, 2, 8, [[conversation] * 2], [conversation], [[1, 2]], 4)
    job.write(tmp_path / "job.json")
    assert Job.read(str(tmp_path / "job.json")) == job


def test_llama_cpp_is_given_the_same_weights(model_dir: Path, tmp_path: Path) -> None:
    write_gguf(model_dir, tmp_path / "model.gguf", "float32")
    ours = AutoModelForCausalLM.from_pretrained(model_dir).state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").state_dict()
    assert {name for name in ours if name.startswith("model.")} <= theirs.keys()
    for name, tensor in ours.items():
        if name.startswith("model."):
            torch.testing.assert_close(theirs[name], tensor, msg=name)
    other = save_tiny_model(tmp_path / "other", "qwen2")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(BadInput, match="of the architecture gpt2; written as GGUF: llama, qwen2, qwen3"):
        write_gguf(other, tmp_path / "other.gguf", "float32")
