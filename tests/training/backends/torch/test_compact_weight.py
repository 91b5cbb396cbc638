"""Weights in 8 or 16 bits: what is computed with them is what transformers computes with the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.training.backends.torch.test_adapter_trainer import check_gradients, family, plain_logprobs, plain_model
from tests.training.backends.torch.tiny_models import random_adapter, save_tiny_model
from training.backends.torch import TorchSettings, compact_weight
from training.backends.torch.adapter_trainer import AdapterTrainer, target_logprobs
from training.backends.torch.compact_weight import CompactLinear, CompactWeight
from training.backends.torch.engine import Completion, Engine, SamplingParams
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import PolicyNetwork, load_network
from training.backends.torch.token_tree import Sample
from training.errors import BadInput

pytestmark = pytest.mark.service

LENGTHS = (50, 600, 2_000, pytest.param(6_000, marks=pytest.mark.slow))


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def long_model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp(f"long-{request.param}"), request.param, context=8192)


@pytest.fixture(params=["int8", "bfloat16"])
def compact(request: pytest.FixtureRequest, settings: TorchSettings) -> TorchSettings:
    return settings.model_copy(update={"base_weights": request.param, "kv_cache_tokens": 24_576})


@pytest.fixture
def network(long_model_dir: Path, compact: TorchSettings) -> PolicyNetwork:
    return PolicyNetwork(long_model_dir, compact)


@pytest.fixture
def same_weights(network: PolicyNetwork, tmp_path: Path) -> Path:
    """The model with the numbers that `network` computes with, in float32."""
    folder = tmp_path / "same"
    folder.mkdir()
    for file in network.model_dir.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    for name, linear in network.linears.items():
        weights[f"{name}.weight"] = linear.weight.contiguous()
    for name, kept in (
        ("model.embed_tokens.weight", network.body.embed_tokens._weight),
        ("lm_head.weight", network.head),
    ):
        weights[name] = kept.dense()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def engine(network: PolicyNetwork, compact: TorchSettings) -> Iterator[Engine]:
    engine = Engine(network, compact)
    yield engine
    engine.close()


@pytest.mark.parametrize("length", LENGTHS)
def test_served_tokens_have_the_logprobs_of_transformers(
    engine: Engine, same_weights: Path, tmp_path: Path, length: int
) -> None:
    adapter = random_adapter(engine.network)
    engine.network.save_adapter(adapter, tmp_path / "adapter")
    reference = AutoModelForCausalLM.from_pretrained(same_weights)
    adapted = PeftModel.from_pretrained(copy.deepcopy(reference), tmp_path / "adapter")
    prompt = np.random.default_rng(0).integers(3, 300, length).tolist()

    def check(prompt: list[int], adapter: LoraAdapter | None, model: torch.nn.Module) -> Completion:
        completion = engine.submit(prompt, SamplingParams(max_tokens=8, seed=0), adapter).result(120)
        ids = prompt + completion.token_ids
        with torch.no_grad():
            expected = model(torch.tensor([ids[:-1]]), logits_to_keep=8).logits[0].log_softmax(-1)
        chosen = expected[-len(completion.token_ids) :].gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.logprobs == pytest.approx(chosen.tolist(), abs=1e-4)
        return completion

    first = check(prompt, None, reference)
    check(prompt, adapter, adapted)
    assert check([*prompt, *first.token_ids, 5, 6, 7], None, reference).cached_tokens >= length


def test_gradients_are_those_of_peft(
    network: PolicyNetwork, compact: TorchSettings, same_weights: Path, tmp_path: Path
) -> None:
    trainer = AdapterTrainer(network, compact, None)
    with torch.no_grad():
        for mine, other in zip(trainer.adapter.parameters(), random_adapter(network).parameters(), strict=True):
            mine.copy_(other)
    samples = [Sample(np.asarray(ids), np.arange(1, len(ids))) for ids in family(seed=1)]
    with network.training_adapter(trainer.adapter):
        logprobs, _ = target_logprobs(network, samples, grad_from=trainer.adapter.layers()[0])
        (-logprobs.sum()).backward()
    model = plain_model(same_weights, network, trainer, tmp_path / "adapter")
    expected = torch.cat([plain_logprobs(model, sample) for sample in samples])
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)
    (-expected.sum()).backward()
    assert all(matrix.grad.dtype == torch.float32 for matrix in trainer.adapter.parameters())
    check_gradients(trainer, model)


def test_in_bfloat16_products_serving_and_training_see_nearly_the_same_policy(
    llama_dir: Path, settings: TorchSettings
) -> None:
    settings = settings.model_copy(update={"matmul_dtype": "bfloat16", "base_weights": "int8"})
    engine = Engine(network := PolicyNetwork(llama_dir, settings), settings)
    try:
        adapter = random_adapter(network)
        prompt = np.random.default_rng(0).integers(3, 300, 80).tolist()
        completion = engine.submit(prompt, SamplingParams(max_tokens=40, seed=0), adapter).result(60)
        sample = Sample(np.asarray(prompt + completion.token_ids), np.arange(80, 80 + len(completion.token_ids)))

        def train() -> torch.Tensor:
            with network.training_adapter(adapter):
                return target_logprobs(network, [sample], grad_from=0)[0]

        trained = engine.run_exclusive(train)
    finally:
        engine.close()
    assert np.abs(np.asarray(completion.logprobs) - trained.detach().numpy()).mean() < 0.02


@pytest.mark.parametrize(("kept", "bytes_each", "largest_error"), [("int8", 1, 0.5 / 127), ("bfloat16", 2, 2**-8)])
def test_a_matrix_is_kept_once_and_to_the_nearest_number(
    kept: str, bytes_each: int, largest_error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_weight, "_BLOCK", 1000)  # several blocks, the last one smaller
    monkeypatch.setattr(compact_weight, "_BACKWARD_BLOCK", 1500)
    weight = torch.randn(40, 60)
    weight[3] = 0
    compact = CompactWeight([weight[:7], weight[7:]], kept, torch.float32)
    held = [value for value in vars(compact).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in held) <= bytes_each * weight.numel() + 4 * len(weight)
    error = (compact.dense() - weight).abs()
    assert (error <= largest_error * weight.abs().amax(-1, keepdim=True) * 1.001).all()
    x, back = torch.randn(5, 60), torch.randn(5, 40)
    torch.testing.assert_close(compact.product(x), x @ compact.dense().T)
    torch.testing.assert_close(compact.transposed_product(back), back @ compact.dense())


@pytest.mark.parametrize("kept", ["int8", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("out", [40, 200])  # sums of the gradient over few rows of the matrix, and over many
def test_adapters_are_columns_of_the_product(
    kept: str, dtype: torch.dtype, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_weight, "_BLOCK", 3000)
    monkeypatch.setattr(compact_weight, "_BACKWARD_BLOCK", 4000)
    torch.manual_seed(0)
    linears = [torch.nn.Linear(64, size) for size in (24, out - 24)]
    joint = CompactLinear(linears, kept, dtype)
    matrices = {1: (torch.randn(4, 64) / 8, torch.randn(out - 24, 4))}
    for matrix in matrices[1]:
        matrix.requires_grad_(True)
    dense = joint.weight

    def expected(x: torch.Tensor) -> torch.Tensor:
        a, b = matrices[1]
        return x @ dense[24:].T + (x @ a.T) @ b.T * 2.0 + linears[1].bias.detach()

    def check(ours: torch.Tensor, exact: torch.Tensor) -> None:
        assert (ours - exact).norm() < (1e-5 if dtype == torch.float32 else 0.01) * exact.norm()

    joint.merge(matrices, 2.0)
    for rows in (1, 4, 5, 90):  # torch's own product up to four
        x = torch.randn(rows, 64).to(dtype)
        with torch.no_grad():
            check(joint.output(x, 1).float(), expected(x.float()))
    x = torch.randn(90, 64, requires_grad=True)
    weights = torch.randn(90, out - 24)
    joint.use(matrices, 2.0)
    inputs = [x, *matrices[1]]
    ours = torch.autograd.grad((joint.output(x, 1).float() * weights).sum(), inputs)
    exact = torch.autograd.grad((expected(x) * weights).sum(), inputs)
    for mine, other in zip(ours, exact, strict=True):
        assert mine.dtype == torch.float32
        check(mine, other)


def test_few_rows_give_what_many_rows_give() -> None:
    """Replies are decoded in steps of few rows, and trained on in passes of many."""
    compact = CompactWeight([torch.randn(96, 128)], "int8", torch.bfloat16)
    x = torch.randn(16, 128)
    few = torch.cat([compact.product(x[row : row + 2]) for row in range(0, 16, 2)])
    torch.testing.assert_close(few, compact.product(x), atol=0.05, rtol=2**-7)


def test_tied_embeddings_are_kept_once(llama_dir: Path, settings: TorchSettings, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama_dir)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    network = load_network(tmp_path, settings.model_copy(update={"base_weights": "int8"}))
    assert network.body.embed_tokens._weight is network.head


@pytest.mark.parametrize("base_weights", ["auto", "int8"])
def test_a_missing_or_ill_fitting_tensor_is_one_line(
    llama_dir: Path, settings: TorchSettings, tmp_path: Path, base_weights: str
) -> None:
    settings = settings.model_copy(update={"base_weights": base_weights})
    (tmp_path / "config.json").write_bytes((llama_dir / "config.json").read_bytes())
    weights = load_file(llama_dir / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    for wrong, said in (
        (weights[name][:5], "asks for floats"),
        (weights[name].to(torch.int8), "int8"),
        (None, "has no tensor"),
    ):
        changed = {**weights, name: wrong} if wrong is not None else {k: v for k, v in weights.items() if k != name}
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(BadInput, match=f"{name}.*{said}|{said} {name}"):
            load_network(tmp_path, settings)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="damaged"):
        load_network(tmp_path, settings)
