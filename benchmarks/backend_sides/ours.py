"""The torch backend: rollouts, concurrent decoding, and updates.

Rollouts use the engine directly with token ids. All sides leave out HTTP and the chat template.
"""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from art.preprocessing.pack import PackedTensors
from art.preprocessing.tokenize import SFTBatch
from art.types import TrainConfig

from benchmarks.backend_sides.job import Conversation, Job, ModelSize, Work, fastest, job_of_command
from training.backends.torch.adapter_trainer import AdapterTrainer, unpack
from training.backends.torch.engine import Completion, Engine, SamplingParams
from training.backends.torch.network import PolicyNetwork, load_network
from training.backends.torch.settings import TorchSettings
from training.backends.torch.token_tree import Sample, build_tree, micro_batches

_EVERYTHING = TorchSettings().micro_batch_tokens


def main() -> None:
    job = job_of_command()
    # All activations of a backward pass are kept, as on TRL's side, which has no gradient checkpointing: no layer is computed twice.
    settings = TorchSettings(device="cpu", threads=job.threads, matmul_dtype=job.dtype, recorded_tokens=_EVERYTHING)
    network = load_network(job.model, settings)
    end_ids, network.end_ids = network.end_ids, frozenset()  # every side samples the given number of tokens
    engine = Engine(network, settings)
    engine.submit(job.decode_prompts[0][:32], SamplingParams(max_tokens=2)).result()
    figures: dict[str, Any] = {"rollouts": measure_rollouts(engine, job), "decode": measure_decode(engine, job)}
    engine.close()
    network.end_ids = end_ids
    figures["training"] = measure_training(network, settings, job)
    figures["peak_memory_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(figures))


def measure_rollouts(engine: Engine, job: Job) -> dict[str, float]:
    """Play all conversations concurrently with an empty cache. Each continues as soon as its reply is complete."""

    def roll_out() -> dict[str, int]:
        engine.run_exclusive(lambda: None)  # clears the cache of the previous run
        before = dict(engine.counters)
        threads = [threading.Thread(target=converse, args=(engine, c)) for c in job.conversations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {name: engine.counters[name] - before[name] for name in before}

    seconds, counted = fastest(roll_out, job.repeats)
    sampled = sum(c.reply_tokens for c in job.conversations)
    assert counted["sampled_tokens"] == sampled, "every reply has the requested length"
    return {"seconds": seconds, "sampled_tokens": sampled, "computed_tokens": counted["computed_tokens"]}


def converse(engine: Engine, conversation: Conversation) -> None:
    ids = list(conversation.opening)
    for turn in conversation.turns:
        completion = engine.submit(ids, SamplingParams(max_tokens=len(turn.reply))).result()
        ids = [*ids, *completion.token_ids, *turn.then]


def measure_decode(engine: Engine, job: Job) -> dict[str, float]:
    """Measure tokens per second when all prompts are continued concurrently and are already cached."""

    def decode(tokens: int) -> None:
        futures: list[Future[Completion]] = [
            engine.submit(prompt, SamplingParams(max_tokens=tokens)) for prompt in job.decode_prompts
        ]
        for future in futures:
            future.result()

    decode(1)
    seconds, _ = fastest(lambda: decode(job.decode_tokens), job.repeats)
    return {"seconds": seconds, "sampled_tokens": len(job.decode_prompts) * job.decode_tokens}


def measure_training(network: PolicyNetwork, settings: TorchSettings, job: Job) -> dict[str, dict[str, float]]:
    """Measure the seconds of an update, its minimum arithmetic and its actual one: a prompt counts once per backward
    pass.
    """
    size = ModelSize.of(job.model)
    trainer = AdapterTrainer(network, settings, None)
    batch, packed = _sft_batch(job.demonstrations), _packed(job.groups)
    trainer.sft_step(_sft_batch(job.demonstrations[:1]))  # the first update makes the optimizer's state
    updates: dict[str, tuple[Callable[[], object], list[Sample]]] = {
        "sft": (lambda: trainer.sft_step(batch), [_sample(c) for c in job.demonstrations]),
        "grpo": (lambda: trainer.policy_step(packed, TrainConfig(learning_rate=1e-4), {}), unpack(packed)[0]),
    }
    figures = {}
    for name, (update, samples) in updates.items():
        seconds, _ = fastest(update, job.repeats)
        batches = [[samples[i] for i in indices] for indices in micro_batches(samples, settings.micro_batch_tokens)]
        executed = sum(size.update_flops(_work(batch), settings.lora_rank) for batch in batches)
        figures[name] = {
            "seconds": seconds,
            "tokens": sum(len(sample.ids) for sample in samples),
            "unique_tokens": _work(samples).tokens,
            "least_gflop": size.update_flops(_work(samples), settings.lora_rank) / 1e9,
            "executed_gflop": executed / 1e9,
        }
    return figures


def _work(samples: list[Sample]) -> Work:
    tree = build_tree(samples)
    return Work.of_positions(tree.positions.tolist(), len(tree.labels))


def _sample(conversation: Conversation) -> Sample:
    return Sample(np.asarray(conversation.ids), np.flatnonzero(conversation.labels))


def _sft_batch(conversations: list[Conversation]) -> SFTBatch:
    tensors = []
    for conversation in conversations:
        ids = torch.tensor([conversation.ids])
        labels = torch.where(torch.tensor([conversation.labels]), ids, -100)
        tensors.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return SFTBatch(
        trajectory_tensors=tensors,
        learning_rate=1e-4,
        num_trajectories=len(tensors),
        num_tokens=sum(len(c.ids) for c in conversations),
        num_trainable_tokens=sum(c.reply_tokens for c in conversations),
    )


def _packed(groups: list[list[Conversation]]) -> PackedTensors:
    """Pack rollouts as ART does: a row per group, its opening first. Half of them get a positive advantage."""
    width = max(len(g[0].opening) + sum(len(c.ids) - len(c.opening) for c in g) for g in groups)
    shape = len(groups), width
    integers = {
        name: np.full(shape, fill, np.int64) for name, fill in (("tokens", 0), ("group_ids", -1), ("parent_ids", -1))
    }
    mask, advantages = np.zeros(shape, bool), np.zeros(shape, np.float32)
    number = 0
    for row, group in enumerate(groups):
        end = len(group[0].opening)
        prompt = number
        integers["tokens"][row, :end] = group[0].opening
        integers["group_ids"][row, :end] = integers["parent_ids"][row, :end] = prompt
        for index, conversation in enumerate(group):
            number += 1
            own = conversation.ids[len(conversation.opening) :]
            part = np.s_[row, end : end + len(own)]
            integers["tokens"][part], integers["group_ids"][part], integers["parent_ids"][part] = own, number, prompt
            mask[part] = conversation.labels[len(conversation.opening) :]
            advantages[part] = 1.0 if index % 2 else -1.0
            end += len(own)
        number += 1
    return PackedTensors(
        **{name: torch.from_numpy(values) for name, values in integers.items()},
        input_pos=torch.zeros(shape, dtype=torch.int64),  # unused: positions follow from the groups
        assistant_mask=torch.from_numpy(mask),
        logprobs=torch.full(shape, -8.0),
        advantages=torch.from_numpy(advantages),
        weights=torch.ones(shape),
        pixel_values=[None] * len(groups),
        image_grid_thw=[None] * len(groups),
    )


if __name__ == "__main__":
    main()
