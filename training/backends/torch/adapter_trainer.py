"""Gradient updates of a LoRA adapter: GRPO with ART's loss, and supervised fine-tuning.

Both compute over token trees, back-propagate in micro-batches and take one AdamW step per batch. Layers below the
first adapted one run without recording; the LM head sees only positions whose prediction counts.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from training.backends.torch.attention import TreeAttention
from training.backends.torch.hardware import release_memory
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.settings import TorchSettings
from training.backends.torch.token_tree import Sample, build_tree, micro_batches

if TYPE_CHECKING:
    from art import dev, types
    from art.loss import Loss
    from art.preprocessing.pack import PackedTensors
    from art.preprocessing.tokenize import SFTBatch

Mode = Literal["rl", "sft"]
_HEAD_ROWS = 128
"""Rows whose logits exist at the same time: 25 MB for a vocabulary of 49,152. Fewer rows read the head more often."""
_WEIGHT_DECAY: dict[Mode, float] = {"rl": 0.1, "sft": 0.0}  # as in ART's own trainer
OPTIMIZER_FILE = "optimizer.pt"
MAX_GRAD_NORM = 1.0
"""Gradients are clipped to this norm before the optimizer's step (AdamW), the usual protection against a single odd batch."""
ALPHA_PER_RANK = 2.0
"""The adapter's output is scaled by this, as that of the other backends is."""


class _TargetLogprobs(torch.autograd.Function):
    """Compute the log-probability of one label per row, and the entropy of each row's distribution.

    The head is frozen, so the gradient with respect to a row of `hidden` is head[label] - softmax(logits) @ head,
    times the incoming scalar: computed in the forward pass while the logits are at hand, never stored as logits.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, network: PolicyNetwork, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, slopes = [], [], []
        for rows, wanted in zip(hidden.split(_HEAD_ROWS), labels.split(_HEAD_ROWS), strict=True):
            logits = network.logits(rows)
            normalizer = logits.logsumexp(-1, keepdim=True)
            logprobs.append((logits.gather(1, wanted[:, None]) - normalizer)[:, 0])
            probabilities = (logits - normalizer).exp_()
            entropies.append(normalizer[:, 0] - torch.linalg.vecdot(probabilities, logits))
            if ctx.needs_input_grad[0]:
                expected_rows = network.head.transposed_product(probabilities)
                slopes.append(network.head.rows(wanted).to(rows.dtype) - expected_rows.to(rows.dtype))
        if slopes:
            ctx.save_for_backward(torch.cat(slopes))
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return grad[:, None].to(slopes.dtype) * slopes, None, None


def target_logprobs(
    network: PolicyNetwork,
    samples: Sequence[Sample],
    grad_from: int | None = None,
    record_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies (float32 [targets]) of all samples' targets, in order."""
    tree = build_tree(samples)
    device = network.device
    plan = TreeAttention(tree.lengths, tree.paths, network.dtype, device)
    ids = torch.from_numpy(tree.ids).to(device)
    positions = torch.from_numpy(tree.positions).to(device)
    hidden = network.hidden(ids, positions, plan, grad_from=grad_from, record_tokens=record_tokens)
    rows, labels = torch.from_numpy(tree.rows).to(device), torch.from_numpy(tree.labels).to(device)
    return _TargetLogprobs.apply(hidden[rows], network, labels)


@dataclass
class PolicyTargets:
    """Inputs of the GRPO loss per target, in addition to its new log-probability. All [targets]."""

    logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    group_ids: torch.Tensor


class AdapterTrainer:
    """An adapter with its optimizer. Use it only while the engine is paused."""

    def __init__(self, network: PolicyNetwork, settings: TorchSettings, checkpoint: Path | None) -> None:
        """Continue from `checkpoint`; `None` starts with a fresh adapter."""
        self._network = network
        self._settings = settings
        if checkpoint is None:
            self.adapter = network.new_adapter(
                settings.lora_rank, ALPHA_PER_RANK * settings.lora_rank, settings.lora_layers, settings.seed
            )
        else:
            self.adapter = network.load_adapter(checkpoint)
        for matrix in self.adapter.parameters():
            matrix.requires_grad_(True)
        a, b = self.adapter.factors()
        groups = [{"params": a, "rate": 1.0}, {"params": b, "rate": settings.lora_plus_ratio}]
        self._optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.99), weight_decay=0.0)
        self._mode: Mode | None = None
        state_file = checkpoint / OPTIMIZER_FILE if checkpoint else None
        if state_file and state_file.is_file():
            state = torch.load(state_file, map_location=network.device, weights_only=True)
            # The state of another version, with all matrices in one group, does not fit and is left out.
            if len(state["optimizer"]["param_groups"]) == len(groups):
                self._mode = state["mode"]
                self._optimizer.load_state_dict(state["optimizer"])
                for group, configured in zip(self._optimizer.param_groups, groups, strict=True):
                    group["rate"] = configured["rate"]

    def save(self, folder: Path) -> None:
        """Write adapter and optimizer to `folder`, all or nothing."""
        partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self._network.save_adapter(self.adapter, partial)
            torch.save({"mode": self._mode, "optimizer": self._optimizer.state_dict()}, partial / OPTIMIZER_FILE)
            os.replace(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def sft_step(self, batch: SFTBatch) -> dict[str, float]:
        """Take one optimizer step on the mean cross-entropy over the batch's labelled tokens."""
        samples = [sample for tensors in batch.trajectory_tensors if (sample := _labelled_sample(tensors))]
        count = sum(len(sample.targets) for sample in samples)
        if not samples:
            return {"loss/train": 0.0, "loss/grad_norm": 0.0, "loss/learning_rate": batch.learning_rate}
        started = time.monotonic()
        total = 0.0
        with self._network.training_adapter(self.adapter):
            for indices in micro_batches(samples, self._settings.micro_batch_tokens):
                logprobs, _ = target_logprobs(
                    self._network,
                    [samples[i] for i in indices],
                    self._grad_from,
                    record_tokens=self._network.recorded_tokens,
                )
                loss = -logprobs.sum() / count
                loss.backward()
                total += loss.item()
        grad_norm = self._apply(batch.learning_rate, "sft")
        return {
            "loss/train": total,
            "loss/grad_norm": grad_norm,
            "loss/learning_rate": batch.learning_rate,
            "throughput/train_tok_per_second": batch.num_tokens / (time.monotonic() - started),
        }

    def policy_step(
        self,
        packed: PackedTensors,
        config: types.TrainConfig,
        dev_config: dev.TrainConfig,
    ) -> dict[str, float]:
        """Take one GRPO step (`art.loss.loss_fn`) on the mean over all trainable tokens of all packed trajectories.

        With a KL penalty, the mean divergence that it is measured against is taken per micro-batch. Without one,
        trajectories whose advantages are all 0 are not computed, because they have no gradient. Entropy, ratio and divergence
        are then means over the others.
        """
        samples, targets = unpack(packed)
        count = sum(len(sample.targets) for sample in samples)
        started = time.monotonic()
        if config.kl_penalty_coef <= 0:
            learnt = [i for i, target in enumerate(targets) if bool((target.advantages != 0).any())]
            samples, targets = [samples[i] for i in learnt], [targets[i] for i in learnt]
        measured = max(1, sum(len(sample.targets) for sample in samples))
        batches = micro_batches(samples, self._settings.micro_batch_tokens)
        references = self._reference_logprobs([[samples[i] for i in batch] for batch in batches], config, dev_config)
        sums = dict.fromkeys(("train", "entropy", "kl_old_new", "ratio_mean", "kl_policy_ref"), 0.0)
        largest_ratio = 0.0
        with self._network.training_adapter(self.adapter):
            for batch, reference in zip(batches, references, strict=True):
                logprobs, entropies = target_logprobs(
                    self._network,
                    [samples[i] for i in batch],
                    self._grad_from,
                    record_tokens=self._network.recorded_tokens,
                )
                of_batch = _join([targets[i] for i in batch], self._network.device)
                loss = _policy_loss(of_batch, logprobs, reference, dev_config)
                (loss.policy_loss / count).backward()
                if self._network.device.type == "cpu":
                    release_memory()  # heap fragmentation would cost half a gigabyte
                logprobs = logprobs.detach()
                change = torch.where(of_batch.logprobs.isnan(), 0.0, logprobs - of_batch.logprobs)
                ratio = change.exp()
                largest_ratio = max(largest_ratio, float(ratio.max()))
                sums["train"] += float(loss.policy_loss.detach())
                sums["entropy"] += float(entropies.sum())
                sums["kl_old_new"] += float((ratio - 1 - change).sum())
                sums["ratio_mean"] += float(ratio.sum())
                if loss.kl_policy_ref is not None:
                    sums["kl_policy_ref"] += float(loss.kl_policy_ref) * len(logprobs)
        if config.kl_penalty_coef <= 0:
            del sums["kl_policy_ref"]
        grad_norm = self._apply(config.learning_rate, "rl")
        return {
            "loss/train": sums.pop("train") / count,
            **{f"loss/{name}": value / measured for name, value in sums.items()},
            "loss/ratio_max": largest_ratio,
            "loss/grad_norm": grad_norm,
            "loss/learning_rate": config.learning_rate,
            "throughput/train_tok_per_second": sum(len(s.ids) for s in samples) / (time.monotonic() - started),
        }

    @property
    def _grad_from(self) -> int:
        return self.adapter.layers()[0]

    def _apply(self, learning_rate: float, mode: Mode) -> float:
        """Clip, step and clear the gradients. A change of mode resets the optimizer (as in ART)."""
        if self._mode != mode:
            self._optimizer.state.clear()
            self._mode = mode
        parameters = self.adapter.parameters()
        grad_norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * group["rate"]
            group["weight_decay"] = _WEIGHT_DECAY[mode]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(grad_norm)

    def _reference_logprobs(
        self, batches: list[list[Sample]], config: types.TrainConfig, dev_config: dev.TrainConfig
    ) -> list[torch.Tensor | None]:
        """Return log-probabilities under the KL reference: the adapter named in `dev_config`, else the base."""
        if config.kl_penalty_coef <= 0:
            return [None] * len(batches)
        path = dev_config.get("kl_ref_adapter_path")
        reference = self._network.load_adapter(path) if path else None
        with self._network.training_adapter(reference), torch.no_grad():
            return [target_logprobs(self._network, batch)[0] for batch in batches]


def unpack(packed: PackedTensors) -> tuple[list[Sample], list[PolicyTargets]]:
    """Return whole trajectories from ART's packed rows, in which those of a group share their prompt.

    A token belongs to the prompt `parent_id` when its `group_id` equals it; padding has group -1. Prompt tokens are
    trained (where the mask says so) with the first trajectory that follows them only.
    """
    samples, targets = [], []
    columns = {key: packed[key].numpy() for key in ("tokens", "group_ids", "parent_ids", "assistant_mask")}
    for row in range(columns["tokens"].shape[0]):
        groups, parents = columns["group_ids"][row], columns["parent_ids"][row]
        edges = np.flatnonzero(np.diff(groups)) + 1
        bounds = [0, *edges.tolist(), len(groups)]
        prompts: dict[int, np.ndarray] = {}
        fresh: set[int] = set()
        for begin, end in zip(bounds, bounds[1:], strict=False):
            group, parent = int(groups[begin]), int(parents[begin])
            if group == parent == -1:
                continue
            own = np.arange(begin, end)
            if group == parent:
                prompts[group] = own
                fresh.add(group)
                continue
            prompt = prompts.get(parent, own[:0])
            path = np.concatenate([prompt, own])
            trained = columns["assistant_mask"][row][path].copy()
            if parent not in fresh:
                trained[: len(prompt)] = False
            fresh.discard(parent)
            trained[0] = False
            positions = np.flatnonzero(trained)
            if not len(positions):
                continue
            samples.append(Sample(columns["tokens"][row][path], positions))
            chosen = torch.from_numpy(path[positions])
            targets.append(
                PolicyTargets(
                    packed["logprobs"][row][chosen],
                    packed["advantages"][row][chosen],
                    packed["weights"][row][chosen],
                    torch.full((len(positions),), len(samples)),
                )
            )
    return samples, targets


def _policy_loss(
    targets: PolicyTargets, logprobs: torch.Tensor, reference: torch.Tensor | None, dev_config: dev.TrainConfig
) -> Loss:
    """Return ART's loss, summed, over a row of targets only. ART shifts its inputs by one against the outputs."""
    from art.loss import loss_fn

    def after_one(values: torch.Tensor) -> torch.Tensor:
        return F.pad(values, (1, 0))[None]

    inputs = {
        "logprobs": after_one(targets.logprobs),
        "advantages": after_one(targets.advantages),
        "weights": after_one(targets.weights),
        "group_ids": after_one(targets.group_ids),
        "assistant_mask": after_one(torch.ones_like(targets.group_ids, dtype=torch.bool)),
    }
    padded_reference = None if reference is None else F.pad(reference, (0, 1))[None]
    return loss_fn(inputs, F.pad(logprobs, (0, 1))[None], padded_reference, None, dev_config, reduction="sum")


def _join(targets: Sequence[PolicyTargets], device: torch.device) -> PolicyTargets:
    return PolicyTargets(*(torch.cat([getattr(t, f.name) for t in targets]).to(device) for f in fields(PolicyTargets)))


def _labelled_sample(tensors: dict[str, torch.Tensor]) -> Sample | None:
    ids, labels = tensors["input_ids"][0].numpy(), tensors["labels"][0].numpy()
    positions = np.flatnonzero(labels[1:] != -100) + 1
    return Sample(ids, positions) if len(positions) else None
