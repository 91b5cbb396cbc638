"""The language model: base weights kept once, LoRA adapters merged for serving or applied explicitly for training."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from training.backends.torch.attention import RAGGED, AttentionPlan, KVPool
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
_PACKED_FOR_ROWS = 24
_SHAPES_REMEMBERED = 256
# oneDNN, and torch in front of it, keep what they made for each shape of a product, of 1,024 shapes by default. Hardly any two updates
# have as many tokens, so a hundred of them leave gigabytes behind. Both read their limit when they multiply for the first time.
for _limit in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_limit, str(_SHAPES_REMEMBERED))


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


class JointLinear:
    """Frozen linear layers that read the same input, as one product: serves merged adapters, or trains explicit ones.

    On CPUs the served weight is packed for oneDNN's kernels, which here are 1.5 to 2 times as fast as the plain
    ones on the few rows of a decoding step, and a tenth faster on long prompts. Packed weights cannot be
    differentiated through, so training uses the plain base weight, which nothing ever changes.
    """

    def __init__(self, linears: Sequence[torch.nn.Linear], dtype: torch.dtype) -> None:
        """Multiplies in `dtype`, whatever the input's; the outputs are of that type too."""
        edges = accumulate((linear.out_features for linear in linears), initial=0)
        self.rows = [slice(first, last) for first, last in pairwise(edges)]
        self.in_features = linears[0].in_features
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases).to(dtype) if biases else None
        self._plain: torch.Tensor | None = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
        self._packs = can_pack(self._plain)
        self._served = self._pack(self._plain)
        self._wide: torch.Tensor | None = None
        self._explicit: _Explicit | None = None
        self._use_base = False
        self._input: torch.Tensor | None = None
        self._outputs: Sequence[torch.Tensor] = ()

    @property
    def weight(self) -> torch.Tensor:
        """The base weights [out of all, in]."""
        return self._served.to_dense() if self._plain is None else self._plain

    def forget_plain(self) -> None:
        """Keep only the packed weight, for layers that are not going to be trained."""
        if self._packs:
            self._plain = None

    def merge(self, matrices: dict[int, tuple[torch.Tensor, torch.Tensor]], scale: float) -> None:
        """Serve the base weights with these adapters, by the number of their layer, and no others."""
        if not matrices:
            self._served = self._pack(self.weight)
            return
        self._plain = self.weight
        merged = self._plain.float()
        if merged is self._plain:  # float32 already
            merged = merged.clone()
        for number, (a, b) in matrices.items():
            merged[self.rows[number]].addmm_(b.float(), a.float(), alpha=scale)
        self._served = self._pack(merged.to(self._plain.dtype))

    def use(self, matrices: dict[int, tuple[torch.Tensor, torch.Tensor]], scale: float) -> None:
        """Multiply by the base weights and these adapters, differentiably, whatever is merged, until `use_merged`."""
        self._use_base, self._explicit = True, None
        if not matrices:
            return
        rank = sum(a.shape[0] for a, _ in matrices.values())
        if self._wide is None or self._wide.shape[1] != self.in_features + rank:
            weight = self.weight
            self._wide = F.pad(weight, (0, rank))
            if self._plain is not None:
                self._plain = self._wide[:, : self.in_features]  # not twice in memory
        self._explicit = _Explicit(self._wide, self.bias, scale, [self.rows[number] for number in matrices], [*matrices.values()])

    def use_merged(self) -> None:
        self._use_base, self._explicit = False, None

    def output(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """Of layer `number`. The layers are asked in their order for the same `x`, and the first asks for all."""
        if x is not self._input:
            self._input, self._outputs = x, self._product(x).split([rows.stop - rows.start for rows in self.rows], dim=-1)
        output = self._outputs[number]
        if number == len(self.rows) - 1:
            self._input, self._outputs = None, ()
        return output

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if self._explicit is not None:
            return _AdaptedProduct.apply(x, self._explicit, *chain.from_iterable(self._explicit.matrices))
        factor = x.to(self._served.dtype)
        if self._use_base or torch.is_grad_enabled():
            return F.linear(factor, self.weight, self.bias)
        linear = packed_linear if self._packs else F.linear
        return linear(factor, self._served, self.bias)

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        return pack(weight) if self._packs else weight


class Projection(torch.nn.Module):
    """One of the layers of a `JointLinear`, in the place where the model has it."""

    def __init__(self, joint: JointLinear, number: int) -> None:
        super().__init__()
        self.joint = joint
        self.number = number

    @property
    def weight(self) -> torch.Tensor:
        """The base weight [out, in]."""
        return self.joint.weight[self.joint.rows[self.number]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joint.output(x, self.number)


class _Explicit:
    """Adapters a_i [r_i, in], b_i [out_i, r_i] of some layers beside their weights: [W | scale b], one block of columns each."""

    def __init__(
        self,
        wide: torch.Tensor,
        bias: torch.Tensor | None,
        scale: float,
        rows: Sequence[slice],
        matrices: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Writes the columns of `wide` [out, in + r] behind the weights, which are there already."""
        self.wide, self.bias, self.scale, self.rows, self.matrices = wide, bias, scale, rows, matrices
        self.in_features = matrices[0][0].shape[1]
        edges = accumulate((a.shape[0] for a, _ in matrices), initial=self.in_features)
        self.columns = [slice(first, last) for first, last in pairwise(edges)]
        with torch.no_grad():
            self.down = torch.cat([a for a, _ in matrices]).to(wide.dtype)
            wide[:, self.in_features :] = 0
            for rows_of, columns, (_, b) in zip(rows, self.columns, matrices, strict=True):
                wide[rows_of, columns] = (b * scale).to(wide.dtype)


class _AdaptedProduct(torch.autograd.Function):
    """x W^T + scale (x a^T) b^T, as the one product [x | x a^T] [W | scale b]^T. W is frozen.

    The gradient of [x | x a^T] is one product too; only the four thin ones with a and b remain beside the two large ones.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, explicit: _Explicit, *matrices: torch.Tensor) -> torch.Tensor:
        """`matrices` are those of `explicit`: named here so that gradients reach them."""
        wide = explicit.wide
        joined = torch.empty(*x.shape[:-1], wide.shape[1], dtype=wide.dtype, device=x.device)
        factor = joined[..., : explicit.in_features]
        factor.copy_(x)
        joined[..., explicit.in_features :] = F.linear(factor, explicit.down)
        ctx.save_for_backward(joined)
        ctx.explicit = explicit
        return F.linear(joined, wide, explicit.bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        explicit, (joined,) = ctx.explicit, ctx.saved_tensors
        width = explicit.in_features
        shape = (*grad.shape[:-1], width)
        grad, joined = grad.flatten(0, -2), joined.flatten(0, -2)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_joined = grad @ explicit.wide
            grad_down = grad_joined[:, width:]
            grad_x = torch.addmm(grad_joined[:, :width], grad_down, explicit.down).view(shape)
        else:
            grad_down = grad @ explicit.wide[:, width:]
        grad_a = grad_down.t() @ joined[:, :width]
        grads: list[torch.Tensor] = []
        for rows, columns in zip(explicit.rows, explicit.columns, strict=True):
            grads.append(grad_a[columns.start - width : columns.stop - width])
            grads.append(grad[:, rows].t() @ joined[:, columns] * explicit.scale)
        return grad_x, None, *grads


def can_pack(weight: torch.Tensor) -> bool:
    """Whether `weight` can be packed for oneDNN."""
    on_cpu = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return on_cpu and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and multiplies_bfloat16()))


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16 numbers."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def pack(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [out, in] in the blocked layout that suits about two dozen rows; `to_dense` gives it back exactly."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


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
        disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(self.model_dir, dtype=dtype, attn_implementation=RAGGED)
        model.to(self.device).eval().requires_grad_(False)
        self.config = model.config
        self.dtype = dtype
        matmul_dtype = _matmul_dtype(settings, dtype)
        self.body = model.model
        self.head: torch.Tensor = model.lm_head.weight.detach()
        self.head_factor = self.head.to(matmul_dtype)
        self._packed_head = pack(self.head) if can_pack(self.head) else None
        self.layer_count = len(self.body.layers)
        # Layers below this one, the trunk, never carry an adapter of ours: what they compute stays valid.
        self.trunk_layers = max(0, self.layer_count - (settings.lora_layers or self.layer_count))
        self.context_length: int = self.config.max_position_embeddings
        self.end_ids = _end_ids(model)
        self.merged: LoraAdapter | None = None
        self.linears: dict[str, Projection] = {}
        for index, layer in enumerate(self.body.layers):
            for block_name, joints in PROJECTIONS.items():
                block = getattr(layer, block_name)
                for names in joints:
                    joint = JointLinear([getattr(block, name) for name in names], matmul_dtype)
                    if index < self.trunk_layers:
                        joint.forget_plain()
                    for number, name in enumerate(names):
                        projection = Projection(joint, number)
                        setattr(block, name, projection)
                        self.linears[f"model.layers.{index}.{block_name}.{name}"] = projection

    def kv_pool(self, tokens: int) -> KVPool:
        attention = self.body.layers[0].self_attn
        heads = self.config.num_key_value_heads
        width = self.config.hidden_size if self.trunk_layers else 0
        return KVPool(self.layer_count, heads, attention.head_dim, width, tokens, self.dtype, self.device)

    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        *,
        grad_from: int | None = None,
        record_tokens: int | None = None,
        trunk: torch.Tensor | None = None,
        keep_trunk: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Final hidden states [n, width] of a row of `ids` [n] at `positions` [n].

        Nothing is recorded for back-propagation below layer `grad_from` (nowhere when it is `None`). A row of more than
        `record_tokens` is recorded in as many layers as fit into the memory that these tokens take in all of them; the
        layers below those are computed once more in the backward pass (Chen et al. 2016). `trunk`
        [n, width] is what enters layer `trunk_layers`, when it is known already; `keep_trunk` is given it otherwise.
        """
        recorded_from = grad_from if grad_from is not None and torch.is_grad_enabled() else self.layer_count
        with torch.no_grad():
            if trunk is None:
                x = self.body.embed_tokens(ids)[None]
                first = 0
            else:
                x = trunk[None]
                first = self.trunk_layers
            rotary = self.body.rotary_emb(x, positions[None])
            if keep_trunk is not None:
                x = self._layers(x, rotary, plan, first, self.trunk_layers)
                keep_trunk(x[0])
                first = self.trunk_layers
            x = self._layers(x, rotary, plan, first, recorded_from)
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
    def explicit(self, adapter: LoraAdapter | None) -> Iterator[None]:
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
            out_features, in_features = linear.weight.shape
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
            expected = tuple(self.linears[name].weight.shape)
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
