"""Rollouts and a GRPO step: time, memory, and whether the step learns."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.backend_sides.job import ModelSize, Work
from benchmarks.gpu_check.machine import peak_memory, synchronize
from benchmarks.gpu_check.workload import layer_dtype, random_ids, sample_of
from training.backends.torch.adapter_trainer import AdapterTrainer, target_logprobs
from training.backends.torch.engine import Completion, Engine, SamplingParams
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.settings import TorchSettings
from training.backends.torch.token_tree import Sample, build_tree

Group = tuple[list[int], list[Completion]]


def rollouts(engine: Engine, workload: SimpleNamespace, size: ModelSize) -> tuple[list[Group], dict[str, Any]]:
    """Sample all rollouts of a step at once; each group shares its prompt."""
    prompts = [random_ids(size, workload.prompt, seed=100 + group) for group in range(workload.groups)]
    sampling = SamplingParams(max_tokens=workload.reply)
    engine.run_exclusive(lambda: None)  # clears the cache
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
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=layer_dtype(device)).to(device).eval()
    prompts = [random_ids(size, workload.prompt, seed=100 + group) for group in range(workload.groups)]
    ids = torch.tensor([prompt for prompt in prompts for _ in range(workload.rollouts)], device=device)
    how = {"do_sample": True, "top_k": 0, "top_p": 1.0, "pad_token_id": 0, "eos_token_id": 0}

    for tokens in (2, workload.reply):  # the first call is a warm-up
        started = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=tokens, max_new_tokens=tokens, **how)
        synchronize(device)
    return {"transformers_generate_seconds": round(time.perf_counter() - started, 3)}


def grpo_step(network: PolicyNetwork, settings: TorchSettings, groups: list[Group], size: ModelSize) -> dict[str, Any]:
    """Update a fresh adapter on `groups` twice, every other rollout with a good advantage. Time the second update.

    `margin` is the mean log-probability per token of the good rollouts minus that of the others. The first update must
    raise it.
    """
    trainer = AdapterTrainer(network, settings, None)
    samples = [sample_of(prompt, reply) for prompt, replies in groups for reply in replies]
    packed = pack(groups)
    config = SimpleNamespace(learning_rate=1e-4, kl_penalty_coef=0.0)
    before = _margin(network, trainer, samples)
    metrics = trainer.policy_step(packed, config, {})
    after = _margin(network, trainer, samples)
    synchronize(network.device)
    started = time.perf_counter()
    trainer.policy_step(packed, config, {})
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
        "margin_after": after,
    }


def _margin(network: PolicyNetwork, trainer: AdapterTrainer, samples: list[Sample]) -> float:
    means = []
    with network.training_adapter(trainer.adapter), torch.no_grad():
        for sample in samples:
            means.append(float(target_logprobs(network, [sample])[0].mean()))
    return sum(means[1::2]) / len(means[1::2]) - sum(means[::2]) / len(means[::2])


def pack(groups: list[Group]) -> dict[str, torch.Tensor]:
    """Pack rollouts as ART does: a row for each group, its prompt first and once."""
    rows: dict[str, list[list[Any]]] = {}
    number = 0
    for prompt, replies in groups:
        row: dict[str, list[Any]] = {
            "tokens": list(prompt),
            "group_ids": [number] * len(prompt),
            "assistant_mask": [False] * len(prompt),
        }
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
