"""The language model: base weights kept once, LoRA adapters merged for serving or applied explicitly for training."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from training.backends.memory import available_memory, require_memory
from training.backends.model_sources.folder import parameter_count
from training.backends.torch.attention import RAGGED, AttentionPlan, KVPool
from training.backends.torch.joint_linear import (
    JointLinear,
    Projection,
    can_pack,
    multiplies_bfloat16,
    pack,
    packed_linear,
)
from training.backends.torch.settings import TorchSettings
from training.errors import BadInput

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
PROJECTIONS = {
    "self_attn": (("q_proj", "k_proj", "v_proj"), ("o_proj",)),
    "mlp": (("gate_proj", "up_proj"), ("down_proj",)),
}
"""Of each block of a layer: linear layers that read the same input, in the order in which the model computes them."""
_PREFIX = "base_model.model."
_RECORDED_TOKENS = {torch.float32: 896, torch.bfloat16: 2048}
"""The default of `recorded_tokens`, by the number format of the products: what a run of 135M parameters in 5 GB has room for."""


class LoraAdapter:
    """Low-rank matrices per projection (Hu et al. 2021): weight + scale * b @ a, with a [r, in] and b [out, r]."""

    def __init__(
        self, key: str, matrices: dict[str, tuple[torch.Tensor, torch.Tensor]], alpha: float, scale: float
    ) -> None:
        self.key = key
        self.matrices = matrices
        self.alpha = alpha
        self.scale = scale

    def parameters(self) -> list[torch.Tensor]:
        """All matrices, in a fixed order."""
        return [matrix for name in sorted(self.matrices) for matrix in self.matrices[name]]

    def layers(self) -> list[int]:
        """The layers that it adapts, ascending."""
        return sorted({_layer_index(name) for name in self.matrices})


class PolicyNetwork:
    """A Llama-like causal language model (Llama, Qwen2) that computes ragged rows of tokens.

    Numbers are float32 on CPU, except in the layers' matrix products (`TorchSettings.matmul_dtype`), and bfloat16 on CUDA.
    At any moment at most one adapter is merged (`merged`).
    """

    def __init__(self, model_dir: str | os.PathLike[str], settings: TorchSettings) -> None:
        device = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        if self.device.type == "cpu":
            torch.set_num_threads(settings.threads or physical_cores())
        self.model_dir = Path(model_dir)
        if not (self.model_dir / "config.json").is_file():
            raise BadInput(f"No model in {self.model_dir}: expected a folder with config.json and safetensors weights.")
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        if self.device.type == "cpu":
            parameters = parameter_count(self.model_dir)
            require_memory(self.model_dir.name, parameters, settings.matmul_dtype, free=available_memory())
        disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=dtype, attn_implementation=RAGGED)
        model.to(self.device).eval().requires_grad_(False)
        self.config = model.config
        self.dtype = dtype
        matmul_dtype = _matmul_dtype(settings, dtype)
        self.recorded_tokens: int = settings.recorded_tokens or _RECORDED_TOKENS[matmul_dtype]
        self.body = model.model
        self.layer_count = len(self.body.layers)
        frozen_layers = max(0, self.layer_count - (settings.lora_layers or self.layer_count))
        self.context_length: int = self.config.max_position_embeddings
        self.end_ids = _end_ids(model)
        self.merged: LoraAdapter | None = None
        self.linears: dict[str, Projection] = {}
        for index, layer in enumerate(self.body.layers):
            for block_name, joints in PROJECTIONS.items():
                block = getattr(layer, block_name)
                for names in joints:
                    joint = JointLinear([getattr(block, name) for name in names], matmul_dtype)
                    if index < frozen_layers:
                        joint.forget_plain()
                    for number, name in enumerate(names):
                        projection = Projection(joint, number)
                        setattr(block, name, projection)
                        self.linears[f"model.layers.{index}.{block_name}.{name}"] = projection
        for parameter in model.parameters():  # the rest: one tensor that maps the file of the weights would keep all of it in memory
            parameter.data = parameter.data.clone()
        self.head: torch.Tensor = model.lm_head.weight.detach()
        self.head_factor = self.head.to(matmul_dtype)
        self._packed_head = pack(self.head) if can_pack(self.head) else None

    def kv_pool(self, tokens: int) -> KVPool:
        attention = self.body.layers[0].self_attn
        heads = self.config.num_key_value_heads
        return KVPool(self.layer_count, heads, attention.head_dim, tokens, self.dtype, self.device)

    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        *,
        grad_from: int | None = None,
        record_tokens: int | None = None,
    ) -> torch.Tensor:
        """Return the final hidden states [n, width] of a row of `ids` [n] at `positions` [n].

        Layers below `grad_from` record nothing for back-propagation; with `None` no layer does. `record_tokens` bounds
        the memory of what is recorded, in tokens times layers: the top layers record, those below them are computed
        again in the backward pass (activation checkpointing, Chen et al. 2016).
        """
        recorded_from = grad_from if grad_from is not None and torch.is_grad_enabled() else self.layer_count
        with torch.no_grad():
            x = self.body.embed_tokens(ids)[None]
            rotary = self.body.rotary_emb(x, positions[None])
            x = self._layers(x, rotary, plan, 0, recorded_from)
        layers = self.layer_count - recorded_from
        recorded = layers if record_tokens is None else min(layers, layers * record_tokens // len(ids))
        for layer in self.body.layers[recorded_from : self.layer_count - recorded]:
            x = checkpoint(
                partial(layer, attention_mask=None, position_embeddings=rotary, plan=plan),
                x,
                use_reentrant=False,
                preserve_rng_state=False,
            )
        x = self._layers(x, rotary, plan, self.layer_count - recorded, self.layer_count)
        return self.body.norm(x)[0]

    def _layers(
        self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], plan: AttentionPlan, first: int, last: int
    ) -> torch.Tensor:
        for layer in self.body.layers[first:last]:
            x = layer(x, attention_mask=None, position_embeddings=rotary, plan=plan)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, width] -> float32 [n, vocabulary]; not differentiable."""
        if self._packed_head is not None:
            return packed_linear(hidden, self._packed_head)
        return F.linear(hidden, self.head).float()

    @torch.inference_mode(False)  # weights made in inference mode could not be trained on later
    @torch.no_grad()
    def merge(self, adapter: LoraAdapter | None) -> None:
        """Serve `adapter` from now on (`None`: the untouched base). Base weights stay as they are: nothing drifts."""
        if (adapter and adapter.key) == (self.merged and self.merged.key):
            return
        for joint, matrices in self._by_joint(adapter, self.merged).items():
            joint.merge(matrices, adapter.scale if adapter else 0.0)
        self.merged = adapter

    @contextmanager
    def training_adapter(self, adapter: LoraAdapter | None) -> Iterator[None]:
        """Apply `adapter` (`None`: none) beside the base weights, so that gradients reach its matrices.

        What is merged for serving stays merged, and does not show inside.
        """
        joints = self._by_joint(adapter, self.merged)
        for joint, matrices in joints.items():
            joint.use(matrices, adapter.scale if adapter else 0.0)
        try:
            yield
        finally:
            for joint in joints:
                joint.use_merged()

    def _by_joint(
        self, adapter: LoraAdapter | None, touched_too: LoraAdapter | None
    ) -> dict[JointLinear, dict[int, tuple[torch.Tensor, torch.Tensor]]]:
        """The matrices of `adapter` by the number of their layer, for every product that one of the two adapters changes."""
        joints: dict[JointLinear, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        for name in touched_too.matrices if touched_too else ():
            joints[self.linears[name].joint] = {}
        for name, pair in adapter.matrices.items() if adapter else ():
            joints.setdefault(self.linears[name].joint, {})[self.linears[name].number] = pair
        return joints

    def new_adapter(self, rank: int, alpha: float, layers: int | None, seed: int) -> LoraAdapter:
        """A fresh adapter on all projections of the top `layers`: a is Kaiming-uniform, b zero (as in PEFT)."""
        generator = torch.Generator().manual_seed(seed)
        first = 0 if layers is None else max(0, self.layer_count - layers)
        matrices = {}
        for name, linear in self.linears.items():
            if _layer_index(name) < first:
                continue
            out_features, in_features = linear.shape
            bound = math.sqrt(1 / in_features)  # kaiming_uniform_ with a = sqrt(5)
            a = (torch.rand(rank, in_features, generator=generator) * 2 - 1) * bound
            matrices[name] = (a.to(self.device), torch.zeros(out_features, rank, device=self.device))
        return LoraAdapter("", matrices, alpha, alpha / rank)

    def load_adapter(self, path: str | os.PathLike[str]) -> LoraAdapter:
        """Read a PEFT LoRA folder. Raises `BadInput` when it is incomplete or does not fit this base model."""
        folder = Path(path)
        for needed in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            if not (folder / needed).is_file():
                raise BadInput(f"No LoRA adapter in {folder}: {needed} is missing.")
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        if config.get("rank_pattern") or config.get("alpha_pattern") or config.get("use_dora"):
            raise BadInput(f"The adapter in {folder} uses per-layer ranks or DoRA, which this backend does not serve.")
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        tensors = load_file(folder / ADAPTER_WEIGHTS)
        pairs: dict[str, dict[str, torch.Tensor]] = {}
        for tensor_name, tensor in tensors.items():
            found = re.fullmatch(rf"{re.escape(_PREFIX)}(.+)\.lora_([AB])\.weight", tensor_name)
            if not found or found[1] not in self.linears:
                raise BadInput(
                    f"The adapter in {folder} does not fit {self.model_dir.name}: no place for {tensor_name}."
                )
            pairs.setdefault(found[1], {})[found[2]] = tensor.to(self.device, torch.float32)
        matrices = {}
        for name, pair in pairs.items():
            expected = self.linears[name].shape
            if set(pair) != {"A", "B"} or (pair["B"].shape[0], pair["A"].shape[1]) != expected:
                shapes = {side: tuple(matrix.shape) for side, matrix in pair.items()}
                raise BadInput(
                    f"The adapter in {folder} was trained on another base model: {name} has shapes {shapes}, "
                    f"{self.model_dir.name} needs {expected}."
                )
            matrices[name] = (pair["A"], pair["B"])
        scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
        stamp = (folder / ADAPTER_WEIGHTS).stat()
        return LoraAdapter(f"{folder.resolve()}:{stamp.st_mtime_ns}", matrices, alpha, scale)

    def save_adapter(self, adapter: LoraAdapter, folder: Path) -> None:
        """Write `adapter` as a PEFT folder (float32)."""
        from peft import LoraConfig

        layers = adapter.layers()
        config = LoraConfig(
            r=next(iter(adapter.matrices.values()))[0].shape[0],
            lora_alpha=adapter.alpha,
            lora_dropout=0.0,
            target_modules=sorted({name.rsplit(".", 1)[1] for name in adapter.matrices}),
            layers_to_transform=layers if len(layers) < self.layer_count else None,
            task_type="CAUSAL_LM",
            base_model_name_or_path=str(self.config._name_or_path),
            inference_mode=True,
        )
        config.save_pretrained(str(folder))
        tensors = {}
        for name, (a, b) in adapter.matrices.items():
            tensors[f"{_PREFIX}{name}.lora_A.weight"] = a.detach().cpu().contiguous()
            tensors[f"{_PREFIX}{name}.lora_B.weight"] = b.detach().cpu().contiguous()
        save_file(tensors, folder / ADAPTER_WEIGHTS)


def load_network(model_dir: str | os.PathLike[str], settings: TorchSettings) -> PolicyNetwork:
    """A `PolicyNetwork`, made by a thread that ends with it and takes its team of OpenMP threads along (see `Engine`)."""
    with ThreadPoolExecutor(1) as maker:
        return maker.submit(PolicyNetwork, model_dir, settings).result()


def physical_cores() -> int:
    """Physical cores that this process may run on (hyper-threads share one)."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return max(1, len(cores))


def give_back_memory() -> None:
    """Return freed memory to the system: allocators keep the peak of an update otherwise."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _matmul_dtype(settings: TorchSettings, dtype: torch.dtype) -> torch.dtype:
    """For a network of `dtype`: other numbers than float32 (CUDA) are multiplied as they are."""
    if dtype != torch.float32:
        return dtype
    if settings.matmul_dtype == "auto":
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    return torch.bfloat16 if settings.matmul_dtype == "bfloat16" else torch.float32


def _layer_index(name: str) -> int:
    return int(name.split(".")[2])


def _end_ids(model: torch.nn.Module) -> frozenset[int]:
    end = model.generation_config.eos_token_id
    if end is None:
        end = model.config.eos_token_id
    return frozenset([end] if isinstance(end, int) else end or [])
