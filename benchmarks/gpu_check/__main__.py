"""Check of the torch backend on this machine's GPU, within twenty minutes and without a network.

  python -m benchmarks.gpu_check                 random models of Qwen2.5's 0.5B and 1.5B shape
  python -m benchmarks.gpu_check --shape tiny    seconds on a CPU: does everything run?

Needs torch, transformers, peft, safetensors and this repository; nothing of ZenML, ART or pydantic. For each shape: log-probabilities
against transformers with the same weights, with and without an adapter and a reused prefix; rollouts next to `transformers.generate`;
a whole GRPO step; peak memory; and the shares of a large matrix product and of memory bandwidth, both measured here. Progress goes to
stderr; stdout gets one JSON line. Exit code: 0 exact, 1 a check failed, 2 it could not run.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from benchmarks.backend_sides.job import ModelSize, Work, fastest
from benchmarks.gpu_check.carried import replaced_packages

with replaced_packages():
    from training.backends.torch.adapter_trainer import AdapterTrainer, target_logprobs
    from training.backends.torch.engine import Completion, Engine, SamplingParams
    from training.backends.torch.hardware import release_memory
    from training.backends.torch.lora import LoraAdapter
    from training.backends.torch.network import PolicyNetwork, load_network
    from training.backends.torch.settings import TorchSettings
    from training.backends.torch.token_tree import Sample, build_tree
    from training.errors import BadInput

_QWEN = {
    "vocab_size": 151_936,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": {
        **_QWEN,
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "1.5b": {
        **_QWEN,
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
    "tiny": {
        **_QWEN,
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": 0.1,
    },
}
FULL = SimpleNamespace(lengths=(50, 600, 2_000), groups=4, rollouts=8, prompt=600, reply=128, matrix=8_192, read=2**30)
TINY = SimpleNamespace(lengths=(20, 50), groups=2, rollouts=4, prompt=40, reply=8, matrix=256, read=2**20)

FLOAT32_TOLERANCE = 1e-4
"""Of log-probabilities, where both sides compute in float32."""
BFLOAT16_MARGIN = 1.5
"""In bfloat16 both sides round. Ours may be further from transformers in float32 than transformers in bfloat16 by this factor."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["0.5b", "1.5b"])
    parser.add_argument("--device", default="auto", help="a torch device; auto takes CUDA when there is one")
    arguments = parser.parse_args()
    device = arguments.device if arguments.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        print(f"error: --device {device}: torch finds no CUDA GPU here; --device cpu runs without", file=sys.stderr)
        return 2
    if device == "cpu" and arguments.shape != ["tiny"]:
        print("error: on a CPU the full shapes take hours: use --shape tiny, or a machine with a GPU", file=sys.stderr)
        return 2
    started = time.perf_counter()
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "limits": limits(torch.device(device), TINY if arguments.shape == ["tiny"] else FULL),
    }
    try:
        for shape in arguments.shape:
            figures[shape] = check_shape(shape, device, figures["limits"])
            release_memory()
    except BadInput as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    failed = [f"{shape} {name}" for shape in arguments.shape for name, ok in figures[shape]["passed"].items() if not ok]
    figures |= {"failed": failed, "seconds": round(time.perf_counter() - started, 1)}
    print(json.dumps(figures))
    return 1 if failed else 0


def limits(device: torch.device, workload: SimpleNamespace) -> dict[str, float]:
    """Measure the largest rate of a matrix product, in the format of the layers, and of reading memory."""
    dtype = _dtype(device)
    a, b = (torch.randn(workload.matrix, workload.matrix, device=device).to(dtype) for _ in range(2))
    numbers = torch.randn(workload.read // 4, device=device)

    def product() -> None:
        torch.mm(a, b)
        synchronize(device)

    def read() -> None:
        numbers.sum()
        synchronize(device)

    product()
    read()
    return {
        "product_tflops": round(2 * workload.matrix**3 / fastest(product, 5)[0] / 1e12, 3),
        "read_gb_per_second": round(4 * numbers.numel() / fastest(read, 5)[0] / 1e9, 1),
    }


def check_shape(shape: str, device: str, limit: dict[str, float]) -> dict[str, Any]:
    """Make a random model of `shape`, run all checks on it and return their figures; `passed` says which held."""
    workload = TINY if shape == "tiny" else FULL
    room = 2 * workload.groups * (workload.rollouts + 1) * (workload.prompt + workload.reply) + 2 * max(
        workload.lengths
    )
    settings = TorchSettings(device=device, matmul_dtype="float32", kv_cache_tokens=max(256, room))
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_random_model(Path(scratch) / "model", shape, torch.device(device))
        progress(f"{shape}: loading")
        started = time.perf_counter()
        network = load_network(folder, settings)
        network.end_ids = frozenset()  # replies have the length that they are told
        figures: dict[str, Any] = {"load_seconds": round(time.perf_counter() - started, 1)}
        size = ModelSize.of(folder)
        engine = Engine(network, settings)
        try:
            engine.submit(_ids(size, 16, seed=0), SamplingParams(max_tokens=2)).result()
            progress(f"{shape}: exactness")
            figures["exactness"] = exactness(engine, folder, workload, size, Path(scratch) / "adapter")
            reset_peak(network.device)
            progress(f"{shape}: rollouts")
            groups, figures["rollouts"] = rollouts(engine, workload, size)
            figures["rollouts"] |= generate(folder, network.device, workload, size)
            share = size.weights * network.head.element_size() * workload.reply / 1e9 / limit["read_gb_per_second"]
            figures["rollouts"]["share_of_bandwidth"] = round(share / figures["rollouts"]["seconds"], 3)
            progress(f"{shape}: GRPO step")
            reset_peak(network.device)
            figures["grpo_step"] = engine.run_exclusive(lambda: grpo_step(network, settings, groups, size))
            flops = figures["grpo_step"]["tflop"] / limit["product_tflops"]
            figures["grpo_step"]["share_of_product"] = round(flops / figures["grpo_step"]["seconds"], 3)
        finally:
            engine.close()
        figures["passed"] = {
            **{f"exactness, {name}": case["passed"] for name, case in figures["exactness"].items()},
            "GRPO step learns": figures["grpo_step"]["margin_after"] > figures["grpo_step"]["margin_before"],
            "GRPO ratio starts at 1": abs(figures["grpo_step"]["ratio_mean"] - 1) < 0.02,
        }
    return figures


def save_random_model(folder: Path, shape: str, device: torch.device) -> Path:
    """Write a model of `shape` with random weights in the device's number format."""
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[shape], max_position_embeddings=4_096, tie_word_embeddings=True)
    with device:
        model = Qwen2ForCausalLM(config)
    for layer in model.model.layers:  # zero at initialisation, and then a lost bias would go unnoticed
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(projection.bias, std=0.1)
    model.to(_dtype(device)).save_pretrained(folder)
    return folder


# Exactness


def exactness(engine: Engine, folder: Path, workload: SimpleNamespace, size: ModelSize, saved: Path) -> dict[str, Any]:
    """Compare log-probabilities with those of transformers: served ones, with a reused prefix, and trained ones with an adapter."""
    network = engine.network
    adapter = _random_adapter(network)
    network.save_adapter(adapter, saved)
    prompts = [_ids(size, length, seed=length) for length in workload.lengths]
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
            [_sample(*pair) for pair in zip(openings, replies, strict=True)],
            [lp for r in replies for lp in r.logprobs],
        )
        for name, (adapted, openings, replies) in served.items()
    }
    samples = cases["served"][1]

    def trained() -> list[float]:
        with network.training_adapter(adapter), torch.no_grad():
            return target_logprobs(network, samples)[0].tolist()

    cases["trained, adapter explicit"] = True, samples, engine.run_exclusive(trained)
    exact, rounded = ({name: [] for name in cases} for _ in range(2))
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
    """Mean and largest distance of log-probabilities from transformers in float32; `transformers` in the number format of ours."""

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
    """Return what `model` of transformers says of the targets of `sample`."""
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


def _sample(opening: list[int], reply: Completion) -> Sample:
    ids = torch.tensor([*opening, *reply.token_ids]).numpy()
    return Sample(ids, torch.arange(len(opening), len(ids)).numpy())


# Rollouts


Group = tuple[list[int], list[Completion]]


def rollouts(engine: Engine, workload: SimpleNamespace, size: ModelSize) -> tuple[list[Group], dict[str, Any]]:
    """Sample all rollouts of a step at once; each group shares its prompt."""
    prompts = [_ids(size, workload.prompt, seed=100 + group) for group in range(workload.groups)]
    sampling = SamplingParams(max_tokens=workload.reply)
    engine.run_exclusive(lambda: None)  # forgets what is cached
    started = time.perf_counter()
    futures = [[engine.submit(prompt, sampling) for _ in range(workload.rollouts)] for prompt in prompts]
    groups = [(prompt, [f.result() for f in row]) for prompt, row in zip(prompts, futures, strict=True)]
    seconds = time.perf_counter() - started
    sampled = workload.groups * workload.rollouts * workload.reply
    figures = {
        "seconds": round(seconds, 3),
        "sampled_tokens": sampled,
        "tokens_per_second": round(sampled / seconds, 1),
    }
    return groups, figures | {"peak_memory_gb": peak_memory(engine.network.device)}


@torch.inference_mode()
def generate(folder: Path, device: torch.device, workload: SimpleNamespace, size: ModelSize) -> dict[str, Any]:
    """Time the same rollouts in one batch of `transformers.generate`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=_dtype(device)).to(device).eval()
    prompts = [_ids(size, workload.prompt, seed=100 + group) for group in range(workload.groups)]
    ids = torch.tensor([prompt for prompt in prompts for _ in range(workload.rollouts)], device=device)
    how = {"do_sample": True, "top_k": 0, "top_p": 1.0, "pad_token_id": 0, "eos_token_id": 0}

    for tokens in (2, workload.reply):  # the first time warms up
        started = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens, max_new_tokens=tokens, **how)
        synchronize(device)
    return {"transformers_generate_seconds": round(time.perf_counter() - started, 3)}


# A GRPO step


def grpo_step(network: PolicyNetwork, settings: TorchSettings, groups: list[Group], size: ModelSize) -> dict[str, Any]:
    """Update a fresh adapter on `groups`, every other rollout with a good advantage.

    `margin` is how much more likely the good rollouts are than the others, per token: the update must raise it.
    """
    trainer = AdapterTrainer(network, settings, None)
    samples = [_sample(prompt, reply) for prompt, replies in groups for reply in replies]
    packed = pack(groups)
    config = SimpleNamespace(learning_rate=1e-4, kl_penalty_coef=0.0)
    before = _margin(network, trainer, samples)
    synchronize(network.device)
    started = time.perf_counter()
    metrics = trainer.policy_step(packed, config, {})
    synchronize(network.device)
    seconds = time.perf_counter() - started
    peak = peak_memory(network.device)
    tree = build_tree(samples)
    work = Work.of_positions(tree.positions.tolist(), len(tree.labels))
    return {
        "seconds": round(seconds, 3),
        "tokens": sum(len(sample.ids) for sample in samples),
        "unique_tokens": work.tokens,
        "tflop": round(size.update_flops(work, settings.lora_rank) / 1e12, 6),
        "peak_memory_gb": peak,
        "ratio_mean": metrics["loss/ratio_mean"],
        "ratio_max": metrics["loss/ratio_max"],
        "grad_norm": metrics["loss/grad_norm"],
        "margin_before": before,
        "margin_after": _margin(network, trainer, samples),
    }


def _margin(network: PolicyNetwork, trainer: AdapterTrainer, samples: list[Sample]) -> float:
    means = []
    with network.training_adapter(trainer.adapter), torch.no_grad():
        for sample in samples:
            means.append(float(target_logprobs(network, [sample])[0].mean()))
    return sum(means[1::2]) / len(means[1::2]) - sum(means[::2]) / len(means[::2])


def pack(groups: list[Group]) -> dict[str, torch.Tensor]:
    """Pack rollouts as ART does: a row for each group, its prompt first and once."""
    rows: dict[str, list[list[float]]] = {}
    number = 0
    for prompt, replies in groups:
        row = {"tokens": list(prompt), "group_ids": [number] * len(prompt), "assistant_mask": [False] * len(prompt)}
        row |= {
            "parent_ids": [number] * len(prompt),
            "logprobs": [0.0] * len(prompt),
            "advantages": [0.0] * len(prompt),
        }
        parent = number
        for index, reply in enumerate(replies):
            number += 1
            length = len(reply.token_ids)
            row["tokens"] += reply.token_ids
            row["logprobs"] += reply.logprobs
            row["group_ids"] += [number] * length
            row["parent_ids"] += [parent] * length
            row["assistant_mask"] += [True] * length
            row["advantages"] += [1.0 if index % 2 else -1.0] * length
        number += 1
        for name, values in row.items():
            rows.setdefault(name, []).append(values)
    packed = {name: torch.tensor(values) for name, values in rows.items()}
    return packed | {"weights": torch.ones_like(packed["logprobs"])}


# The machine


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float:
    """Return the peak in GB: of the GPU since `reset_peak`, or of this process since it started."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _ids(size: ModelSize, count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(8, size.vocabulary) for _ in range(count)]


if __name__ == "__main__":
    sys.exit(main())
