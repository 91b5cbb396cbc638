"""Updates over token trees give the numbers of the plain computation, one sequence at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from art.loss import loss_fn
from art.preprocessing.pack import PackedTensors, packed_tensors_from_tokenized_results
from art.preprocessing.tokenize import SFTBatch, TokenizedResult
from art.types import TrainConfig
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.training.backends.torch.tiny_models import random_adapter
from training.backends.torch import TorchSettings, adapter_trainer
from training.backends.torch.adapter_trainer import AdapterTrainer, target_logprobs, unpack
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.token_tree import Sample, build_tree, micro_batches

pytestmark = pytest.mark.service

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=12), min_size=1, max_size=8)


def as_sample(ids: Sequence[int], rng: np.random.Generator) -> Sample:
    count = int(rng.integers(1, len(ids)))
    return Sample(np.asarray(ids), np.sort(rng.choice(np.arange(1, len(ids)), count, replace=False)))


@given(SEQUENCES, st.integers(0, 99))
def test_the_tree_holds_every_sequence_once(sequences: list[list[int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = [as_sample(ids, rng) for ids in sequences]
    tree = build_tree(samples)
    starts = np.cumsum([0, *tree.lengths])
    segment_of = np.repeat(np.arange(len(tree.lengths)), tree.lengths)
    assert len(tree.ids) == len({tuple(s.inputs[: n + 1]) for s in samples for n in range(len(s.inputs))})
    row = 0
    for sample in samples:
        for target in sample.targets:
            entry = tree.rows[row]
            path = np.concatenate([np.arange(starts[p], starts[p + 1]) for p in tree.paths[segment_of[entry]]])
            seen = path[path <= entry]
            assert tree.ids[seen].tolist() == sample.ids[:target].tolist()
            assert tree.positions[seen].tolist() == list(range(target))
            assert tree.labels[row] == sample.ids[target]
            row += 1
    assert row == len(tree.rows)


@given(SEQUENCES, st.integers(4, 40))
def test_micro_batches_hold_everything_within_the_budget(sequences: list[list[int]], budget: int) -> None:
    samples = [as_sample(ids, np.random.default_rng(0)) for ids in sequences]
    batches = micro_batches(samples, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(samples)))
    for batch in batches:
        assert len(batch) == 1 or len(build_tree([samples[i] for i in batch]).ids) <= budget


def family(seed: int, groups: int = 2, members: int = 3) -> list[list[int]]:
    """Sequences as in GRPO: a prefix for all, one per group, and some that agree further."""
    rng = np.random.default_rng(seed)
    everyone = rng.integers(3, 300, 12).tolist()
    sequences = []
    for _ in range(groups):
        prompt = everyone + rng.integers(3, 300, 7).tolist()
        sequences += [prompt + rng.integers(3, 300, int(rng.integers(4, 20))).tolist() for _ in range(members)]
        sequences.append(sequences[-1][:-2] + [7, 8, 9])
    return sequences


def plain_model(model_dir: Path, network: PolicyNetwork, trainer: AdapterTrainer, folder: Path) -> PeftModel:
    network.save_adapter(trainer.adapter, folder)
    base = AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager")
    # In float64, so that what differs is our own rounding: a sum in float32 depends on the processor's order.
    return PeftModel.from_pretrained(base, folder, is_trainable=True).double()


def plain_logprobs(model: torch.nn.Module, sample: Sample) -> torch.Tensor:
    logprobs = model(torch.from_numpy(sample.ids)[None]).logits[0].log_softmax(-1)
    targets = torch.from_numpy(sample.targets)
    return logprobs[targets - 1, torch.from_numpy(sample.ids)[targets]].float()


def plain_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("base_model.model.").replace(".default", ""): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def check_gradients(trainer: AdapterTrainer, model: torch.nn.Module, scale: float = 1.0) -> None:
    expected = plain_gradients(model)
    assert len(expected) == 2 * len(trainer.adapter.matrices)
    for name, pair in trainer.adapter.matrices.items():
        for side, matrix in zip("AB", pair, strict=True):
            reference = expected[f"{name}.lora_{side}.weight"] * scale
            assert matrix.grad is not None
            torch.testing.assert_close(matrix.grad, reference.float(), atol=1e-4, rtol=1e-3)


@pytest.fixture
def network(model_dir: Path, settings: TorchSettings) -> PolicyNetwork:
    return PolicyNetwork(model_dir, settings)


@pytest.fixture
def trainer(network: PolicyNetwork, settings: TorchSettings, monkeypatch: pytest.MonkeyPatch) -> AdapterTrainer:
    """With an adapter that does something, and gradients that stay where they can be seen."""
    trainer = AdapterTrainer(network, settings, None)
    with torch.no_grad():
        for mine, other in zip(trainer.adapter.parameters(), random_adapter(network).parameters(), strict=True):
            mine.copy_(other)
    return trainer


def keep_gradients(trainer: AdapterTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_apply", lambda learning_rate, mode: 0.0)


@pytest.mark.parametrize("budget", [16, 64, 4096])
def test_sft_gradients_equal_the_plain_computation(
    model_dir: Path,
    network: PolicyNetwork,
    trainer: AdapterTrainer,
    tmp_path: Path,
    budget: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_gradients(trainer, monkeypatch)
    monkeypatch.setattr(trainer, "_settings", trainer._settings.model_copy(update={"micro_batch_tokens": budget}))
    rng = np.random.default_rng(0)
    samples = [as_sample(ids, rng) for ids in family(0)]
    count = sum(len(s.targets) for s in samples)
    model = plain_model(model_dir, network, trainer, tmp_path)
    loss = -sum(plain_logprobs(model, sample).sum() for sample in samples) / count
    loss.backward()
    tensors = []
    for sample in samples:
        labels = torch.full((1, len(sample.ids)), -100)
        labels[0, sample.targets] = torch.from_numpy(sample.ids[sample.targets])
        tensors.append({"input_ids": torch.from_numpy(sample.ids)[None], "labels": labels})
    metrics = trainer.sft_step(SFTBatch(tensors, 1e-3, len(samples), sum(len(s.ids) for s in samples), count))
    assert metrics["loss/train"] == pytest.approx(loss.item(), abs=1e-4)
    check_gradients(trainer, model)


def packed_rollouts(network: PolicyNetwork, shared: bool) -> PackedTensors:
    rng = np.random.default_rng(1)
    results = []
    for group in range(2):
        sequences = family(group, groups=1)
        for number, ids in enumerate(sequences):
            mask = [0] * 19 + rng.integers(0, 2, len(ids) - 19).tolist()
            mask[-1] = 1
            results.append(
                TokenizedResult(
                    advantage=float(rng.normal()),
                    chat="",
                    token_ids=ids,
                    input_pos=list(range(len(ids))),
                    assistant_mask=mask,
                    logprobs=[float(-rng.random() * 5) if m else math.nan for m in mask],
                    pixel_values=None,
                    image_grid_thw=None,
                    trajectory=SimpleNamespace(),
                    choice_offsets=[],
                    extra_logprobs={},
                    _tokenizer=None,
                    weight=1 / sum(mask),
                    prompt_id=group + 1 if shared else group * 100 + number + 1,
                    prompt_length=18 if shared else 0,
                )
            )
    return packed_tensors_from_tokenized_results(results, 256, pad_token_id=2, pack_results=shared)


def test_packed_rows_unpack_to_whole_trajectories(network: PolicyNetwork) -> None:
    """Whether ART shares the prompts of a group in a row or not makes no difference."""
    together, apart = (
        sorted(tuple(s.ids.tolist()) + tuple(s.targets.tolist()) for s in unpack(packed_rollouts(network, shared))[0])
        for shared in (True, False)
    )
    assert together == apart
    assert len(together) == 8


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ppo": True},
        {"importance_sampling_level": "sequence"},
        {"ppo": True, "epsilon": 0.1, "epsilon_high": 0.3},
        {"kl_penalty_coef": 0.2},
    ],
)
@pytest.mark.parametrize("better_only", [False, True])
def test_policy_gradients_equal_arts_loss_on_plain_rows(
    model_dir: Path,
    network: PolicyNetwork,
    trainer: AdapterTrainer,
    tmp_path: Path,
    options: dict,
    better_only: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference lets ART's loss see whole, unshared rows with their padding."""
    keep_gradients(trainer, monkeypatch)
    packed = packed_rollouts(network, shared=False)
    computed: list[int] = []

    def counted(network: PolicyNetwork, samples: list[Sample], *args: Any, **options: Any) -> Any:
        computed.append(len(samples))
        return target_logprobs(network, samples, *args, **options)

    if better_only:
        packed["advantages"].clamp_(min=0)
        monkeypatch.setattr(adapter_trainer, "target_logprobs", counted)
    model = plain_model(model_dir, network, trainer, tmp_path)

    def outputs() -> torch.Tensor:
        logprobs = model(packed["tokens"]).logits.log_softmax(-1)
        following = torch.nn.functional.pad(packed["tokens"][:, 1:], (0, 1))
        return logprobs.gather(-1, following[..., None])[..., 0]

    reference = None
    if "kl_penalty_coef" in options:
        with torch.no_grad(), model.disable_adapter():
            reference = outputs()
    loss = loss_fn(packed, outputs(), reference, None, options)
    loss.policy_loss.backward()
    config = TrainConfig(learning_rate=1e-4, kl_penalty_coef=options.get("kl_penalty_coef", 0.0))
    metrics = trainer.policy_step(packed, config, options)
    assert metrics["loss/train"] == pytest.approx(loss.policy_loss.item(), abs=1e-4)
    check_gradients(trainer, model)
    if better_only and "kl_penalty_coef" not in options:
        assert 0 < sum(computed) < 8


def test_logprobs_and_entropies_equal_the_plain_computation(
    model_dir: Path, network: PolicyNetwork, trainer: AdapterTrainer, tmp_path: Path
) -> None:
    samples = [as_sample(ids, np.random.default_rng(i)) for i, ids in enumerate(family(3))]
    model = plain_model(model_dir, network, trainer, tmp_path)
    with network.training_adapter(trainer.adapter), torch.no_grad():
        logprobs, entropies = target_logprobs(network, samples)
    with torch.no_grad():
        expected = torch.cat([plain_logprobs(model, sample) for sample in samples])
        full = [model(torch.from_numpy(s.ids)[None]).logits[0, s.targets - 1].log_softmax(-1).float() for s in samples]
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(entropies, torch.cat([-(p.exp() * p).sum(-1) for p in full]), atol=1e-4, rtol=1e-4)


def test_a_saved_trainer_continues_as_if_never_stopped(
    network: PolicyNetwork, settings: TorchSettings, tmp_path: Path
) -> None:
    packed = packed_rollouts(network, shared=True)
    config = TrainConfig(learning_rate=1e-3)  # of A; B moves eight times as fast
    straight = AdapterTrainer(network, settings, None)
    for step in (1, 2, 3):
        straight.policy_step(packed, config, {})
        if step < 3:
            straight.save(tmp_path / f"{step:04d}")
    for step in (2, 1):  # from the last checkpoint, and from an older one
        resumed = AdapterTrainer(network, settings, tmp_path / f"{step:04d}")
        for _ in range(3 - step):
            resumed.policy_step(packed, config, {})
        for mine, theirs in zip(resumed.adapter.parameters(), straight.adapter.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0001", "0002"]


def test_b_moves_by_a_multiple_of_the_rate_of_a(network: PolicyNetwork, settings: TorchSettings) -> None:
    def largest_steps(ratio: float) -> tuple[float, float]:
        trainer = AdapterTrainer(network, settings.model_copy(update={"lora_plus_ratio": ratio}), None)
        before = [matrix.detach().clone() for matrix in trainer.adapter.parameters()]
        for matrix in trainer.adapter.parameters():
            matrix.grad = torch.ones_like(matrix)
        trainer._apply(1e-3, "sft")
        moved = [float((m - b).abs().max()) for m, b in zip(trainer.adapter.parameters(), before, strict=True)]
        return max(moved[::2]), max(moved[1::2])

    # The first step of Adam moves every weight by the full rate.
    assert largest_steps(1.0) == pytest.approx((1e-3, 1e-3), rel=1e-3)
    assert largest_steps(8.0) == pytest.approx((1e-3, 8e-3), rel=1e-3)


def test_the_ratio_is_the_settings_also_after_a_resume(
    network: PolicyNetwork, settings: TorchSettings, tmp_path: Path
) -> None:
    AdapterTrainer(network, settings.model_copy(update={"lora_plus_ratio": 8.0}), None).save(tmp_path / "0001")
    resumed = AdapterTrainer(network, settings.model_copy(update={"lora_plus_ratio": 2.0}), tmp_path / "0001")
    assert [group["rate"] for group in resumed._optimizer.param_groups] == [1.0, 2.0]


def test_a_long_conversation_is_recorded_in_part(network: PolicyNetwork, trainer: AdapterTrainer) -> None:
    sample = as_sample(np.random.default_rng(0).integers(3, 300, 200).tolist(), np.random.default_rng(0))
    kept = {}
    for record_tokens in (100, 200):
        storages: dict[int, int] = {}

        def pack(tensor: torch.Tensor, storages: dict[int, int] = storages) -> torch.Tensor:
            if len(sample.inputs) in tensor.shape:  # else a weight
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with (
            network.training_adapter(trainer.adapter),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        ):
            logprobs, _ = target_logprobs(network, [sample], trainer._grad_from, record_tokens=record_tokens)
            kept[record_tokens] = sum(storages.values())
            logprobs.sum().backward()
    assert kept[100] < 0.75 * kept[200]
