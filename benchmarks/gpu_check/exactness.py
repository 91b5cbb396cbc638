"""Log-probabilities of the torch backend, compared with those of transformers on the same weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from benchmarks.backend_sides.job import ModelSize
from benchmarks.gpu_check.workload import random_ids, sample_of
from training.backends.torch.adapter_trainer import target_logprobs
from training.backends.torch.engine import Engine, SamplingParams
from training.backends.torch.hardware import release_memory
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.token_tree import Sample

FLOAT32_TOLERANCE = 1e-4
"""Tolerance of log-probabilities if both sides compute in float32."""
BFLOAT16_MARGIN = 1.5
"""Tolerance in bfloat16, where both sides round: the maximum ratio of our distance from transformers in float32 to that
of transformers in bfloat16.
"""


def exactness(engine: Engine, folder: Path, workload: SimpleNamespace, size: ModelSize, saved: Path) -> dict[str, Any]:
    """Compare log-probabilities with those of transformers: served ones, with a reused prefix, and trained ones with an adapter."""
    network = engine.network
    adapter = _random_adapter(network)
    network.save_adapter(adapter, saved)
    prompts = [random_ids(size, length, seed=length) for length in workload.lengths]
    sampling = SamplingParams(max_tokens=workload.reply)
    first = [engine.submit(prompt, sampling).result() for prompt in prompts]
    further = [[*prompt, *reply.token_ids, 5, 6, 7] for prompt, reply in zip(prompts, first, strict=True)]
    second = [engine.submit(ids, sampling).result() for ids in further]
    assert all(reply.cached_tokens for reply in second), "the second turn reuses the first"
    merged = [engine.submit(prompt, sampling, adapter=adapter).result() for prompt in prompts]
    served = {
        "served": (False, prompts, first),
        "served, prefix reused": (False, further, second),
        "served, adapter merged": (True, prompts, merged),
    }
    cases = {
        name: (
            adapted,
            [sample_of(*pair) for pair in zip(openings, replies, strict=True)],
            [lp for r in replies for lp in r.logprobs],
        )
        for name, (adapted, openings, replies) in served.items()
    }
    samples = cases["served"][1]

    def trained() -> list[float]:
        with network.training_adapter(adapter), torch.no_grad():
            return target_logprobs(network, samples)[0].tolist()

    cases["trained, adapter explicit"] = True, samples, engine.run_exclusive(trained)
    exact: dict[str, list[float]] = {}
    rounded: dict[str, list[float]] = {name: [] for name in cases}
    dtypes = (
        {torch.float32: exact} if network.dtype == torch.float32 else {torch.float32: exact, network.dtype: rounded}
    )
    for dtype, found in dtypes.items():
        model = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
            .to(network.device)
            .eval()
        )
        for adapted in (False, True):
            if adapted:
                model = PeftModel.from_pretrained(model, saved)
            for name, (of_adapter, of_case, _) in cases.items():
                if of_adapter == adapted:
                    found[name] = [logprob for sample in of_case for logprob in reference_logprobs(model, sample)]
        del model
        release_memory()
    return {name: _deviation(ours, exact[name], rounded[name]) for name, (_, _, ours) in cases.items()}


def _deviation(ours: list[float], exact: list[float], rounded: list[float]) -> dict[str, Any]:
    """Compute mean and maximum distance of log-probabilities from transformers in float32; `transformers` uses our
    number format.
    """

    def distance(values: list[float]) -> torch.Tensor:
        return (torch.tensor(values) - torch.tensor(exact)).abs()

    figures: dict[str, Any] = {"mean": float(distance(ours).mean()), "largest": float(distance(ours).max())}
    if not rounded:
        return figures | {"passed": figures["largest"] < FLOAT32_TOLERANCE}
    figures |= {
        "transformers_mean": float(distance(rounded).mean()),
        "transformers_largest": float(distance(rounded).max()),
    }
    return figures | {"passed": figures["mean"] < BFLOAT16_MARGIN * figures["transformers_mean"] + FLOAT32_TOLERANCE}


@torch.inference_mode()
def reference_logprobs(model: torch.nn.Module, sample: Sample) -> list[float]:
    """Return the log-probabilities of the targets of `sample` by the transformers `model`."""
    device = next(model.parameters()).device
    ids = torch.from_numpy(sample.ids).to(device)
    targets = torch.from_numpy(sample.targets).to(device)
    logits = model(ids[None], logits_to_keep=len(ids) - int(sample.targets[0]) + 1).logits[0].float()
    first = int(sample.targets[0]) - 1
    return logits[targets - 1 - first].log_softmax(-1).gather(1, ids[targets][:, None])[:, 0].tolist()


def _random_adapter(network: PolicyNetwork) -> LoraAdapter:
    adapter = network.new_adapter(16, 32.0, None, seed=0)
    generator = torch.Generator().manual_seed(1)
    for _, b in adapter.matrices.values():
        b.copy_(torch.randn(b.shape, generator=generator) * 0.01)
    adapter.key = "random"
    return adapter
