"""The language model: one copy of the base weights, with LoRA adapters merged for serving or kept separate for training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from training.backends.memory import available_memory, require_memory
from training.backends.model_sources.folder import parameter_count
from training.backends.torch.attention import RAGGED, AttentionPlan, KVPool
from training.backends.torch.compact_weight import CompactEmbedding, CompactLinear, CompactWeight
from training.backends.torch.hardware import chosen_device, chosen_matmul_dtype, physical_cores, release_memory
from training.backends.torch.joint_linear import JointLinear, JointProduct, Matrices, Projection
from training.backends.torch.lora import LoraAdapter, layer_index, load_adapter, new_adapter, save_adapter
from training.backends.torch.output_head import DenseHead, OutputHead
from training.backends.torch.settings import TorchSettings
from training.backends.torch.weight_files import WeightFiles
from training.errors import BadInput

PROJECTIONS = {
    "self_attn": (("q_proj", "k_proj", "v_proj"), ("o_proj",)),
    "mlp": (("gate_proj", "up_proj"), ("down_proj",)),
}
"""Linear layers of each block, grouped by shared input, in the order in which the model computes them."""
_RECORDED_TOKENS = {torch.float32: 896, torch.bfloat16: 2048}
"""Default of `recorded_tokens` by the number format of the products. With 135M parameters a run then fits in 5 GB."""


ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Types of models whose computation `PolicyNetwork` repeats exactly. Others scale embeddings or logits, for example."""


class PolicyNetwork:
    """A Llama-like causal language model (`ARCHITECTURES`) that computes ragged rows of tokens.

    Tensors are float32 on CPU, except in the layers' matrix products (`TorchSettings.matmul_dtype`), and bfloat16 on CUDA.
    Base weights may be kept in fewer bits (`TorchSettings.base_weights`); they are read from the mapped files layer by layer.
    At most one adapter is merged at a time (`merged`).
    """

    def __init__(self, model_dir: str | os.PathLike[str], settings: TorchSettings) -> None:
        self.device = chosen_device(settings)
        if self.device.type == "cpu":
            torch.set_num_threads(settings.threads or physical_cores())
        else:
            torch.backends.cuda.enable_cudnn_sdp(False)  # fails with a misaligned address (H200, torch 2.11)
        self.model_dir = Path(model_dir)
        if not (self.model_dir / "config.json").is_file():
            raise BadInput(f"No model in {self.model_dir}: expected a folder with config.json and safetensors weights.")
        if self.device.type == "cpu":
            parameters = parameter_count(self.model_dir)
            require_memory(self.model_dir.name, parameters, settings, free=available_memory())
        self.dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        self._settings = settings
        self._matmul_dtype = chosen_matmul_dtype(settings, self.dtype)
        self.recorded_tokens: int = settings.recorded_tokens or _RECORDED_TOKENS[self._matmul_dtype]
        self.config = AutoConfig.from_pretrained(self.model_dir)
        if self.config.model_type not in ARCHITECTURES or _slides(self.config):
            raise BadInput(
                f"The model in {self.model_dir} is of the architecture {self.config.model_type}"
                f"{' with a sliding window' if _slides(self.config) else ''}; backend=torch computes {', '.join(ARCHITECTURES)} "
                "without one: take such a model, or backend=local"
            )
        if getattr(self.config, "quantization_config", None):
            raise BadInput(f"The model in {self.model_dir} is quantised already: take it in bfloat16 or float32.")
        self.context_length: int = self.config.max_position_embeddings
        self.end_ids = _end_ids(self.model_dir, self.config)
        self.merged: LoraAdapter | None = None
        self.linears: dict[str, Projection] = {}
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config, attn_implementation=RAGGED)
        model.eval().requires_grad_(False)
        self.body = model.model
        self.layer_count = len(self.body.layers)
        files = WeightFiles(self.model_dir)
        frozen_layers = max(0, self.layer_count - (settings.lora_layers or self.layer_count))
        for index in range(self.layer_count):
            self._load_layer(index, files, trained=index >= frozen_layers)
        self._load_around_layers(model, files)
        release_memory()

    def _load_layer(self, index: int, files: WeightFiles, *, trained: bool) -> None:
        layer, prefix = self.body.layers[index], f"model.layers.{index}"
        stored = {name: files.read(f"{prefix}.{name}", meta.shape) for name, meta in layer.named_parameters()}
        layer.load_state_dict(stored, assign=True)
        for block_name, joints in PROJECTIONS.items():
            block = getattr(layer, block_name)
            for names in joints:
                joint = self._joint([getattr(block, name).to(self.device) for name in names])
                if isinstance(joint, JointLinear) and not trained:
                    joint.forget_plain()
                for number, name in enumerate(names):
                    projection = Projection(joint, number)
                    setattr(block, name, projection)
                    self.linears[f"{prefix}.{block_name}.{name}"] = projection
        for parameter in layer.parameters():  # those of the norms; copies, since views keep the mapped file in memory
            parameter.data = parameter.data.to(self.device, self.dtype, copy=True)

    def _joint(self, linears: list[torch.nn.Linear]) -> JointProduct:
        if self._settings.base_weights == "auto":
            return JointLinear(linears, self._matmul_dtype)
        return CompactLinear(linears, self._settings.base_weights, self._matmul_dtype)

    def _load_around_layers(self, model: torch.nn.Module, files: WeightFiles) -> None:
        """Load last norm, embeddings and output head, which may be the embeddings."""
        norm = files.read("model.norm.weight", self.body.norm.weight.shape)
        self.body.norm.load_state_dict({"weight": norm.to(self.device, self.dtype, copy=True)}, assign=True)
        self.body.rotary_emb = type(self.body.rotary_emb)(config=self.config).to(self.device)
        names = {"model.embed_tokens.weight": self.body.embed_tokens.weight.shape}
        if not self.config.tie_word_embeddings:
            names["lm_head.weight"] = model.lm_head.weight.shape
        self.head: OutputHead
        if self._settings.base_weights == "auto":
            dense = [files.read(name, shape).to(self.device, self.dtype, copy=True) for name, shape in names.items()]
            self.body.embed_tokens.load_state_dict({"weight": dense[0]}, assign=True)
            self.head = DenseHead(dense[-1], self._matmul_dtype)
            return
        # The head multiplies in `dtype`: log-probabilities are differences of its outputs.
        kept = self._settings.base_weights
        compact = [
            CompactWeight([files.read(name, shape).to(self.device)], kept, self.dtype) for name, shape in names.items()
        ]
        self.body.embed_tokens = CompactEmbedding(compact[0], self.dtype)
        self.head = compact[-1]

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
        """Return logits, float32 [n, vocabulary], of `hidden` [n, width]; not differentiable."""
        return self.head.product(hidden).float()

    @torch.inference_mode(False)  # weights made in inference mode could not be trained on later
    @torch.no_grad()
    def merge(self, adapter: LoraAdapter | None) -> None:
        """Serve `adapter` from now on (`None`: the base model). The base weights are kept, so repeated merges do not drift."""
        if (adapter and adapter.key) == (self.merged and self.merged.key):
            return
        for joint, matrices in self._by_joint(adapter, self.merged).items():
            joint.merge(matrices, adapter.scale if adapter else 0.0)
        self.merged = adapter

    @contextmanager
    def training_adapter(self, adapter: LoraAdapter | None) -> Iterator[None]:
        """Compute with the base weights and `adapter` (`None`: without one), so that gradients reach its matrices.

        The adapter merged for serving stays merged but has no effect inside.
        """
        joints = self._by_joint(adapter, self.merged)
        for joint, matrices in joints.items():
            joint.use(matrices, adapter.scale if adapter else 0.0)
        try:
            yield
        finally:
            for joint in joints:
                joint.use_merged()

    def _by_joint(self, adapter: LoraAdapter | None, touched_too: LoraAdapter | None) -> dict[JointProduct, Matrices]:
        """Return the matrices of `adapter` by projection number, for each joint product that either adapter changes."""
        joints: dict[JointProduct, Matrices] = {}
        for name in touched_too.matrices if touched_too else ():
            joints[self.linears[name].joint] = {}
        for name, pair in adapter.matrices.items() if adapter else ():
            joints.setdefault(self.linears[name].joint, {})[self.linears[name].number] = pair
        return joints

    def new_adapter(self, rank: int, alpha: float, layers: int | None, seed: int) -> LoraAdapter:
        """Return a fresh adapter on all projections of the top `layers` (`None`: of all layers)."""
        first = 0 if layers is None else max(0, self.layer_count - layers)
        shapes = {name: linear.shape for name, linear in self.linears.items() if layer_index(name) >= first}
        return new_adapter(shapes, rank, alpha, seed, self.device)

    def load_adapter(self, path: str | os.PathLike[str]) -> LoraAdapter:
        """Read a PEFT LoRA folder. Raise `BadInput` when it is incomplete or does not fit this base model."""
        shapes = {name: linear.shape for name, linear in self.linears.items()}
        return load_adapter(path, shapes, self.model_dir.name, self.device)

    def save_adapter(self, adapter: LoraAdapter, folder: Path) -> None:
        """Write `adapter` as a PEFT folder (float32)."""
        save_adapter(adapter, folder, self.layer_count, str(self.config._name_or_path))


def load_network(model_dir: str | os.PathLike[str], settings: TorchSettings) -> PolicyNetwork:
    """Load a `PolicyNetwork` in a thread that then ends, and with it that thread's OpenMP team (see `Engine`)."""
    with ThreadPoolExecutor(1) as loader:
        return loader.submit(PolicyNetwork, model_dir, settings).result()


def _slides(config: PreTrainedConfig) -> bool:
    return getattr(config, "sliding_window", None) is not None


def _end_ids(model_dir: Path, config: PreTrainedConfig) -> frozenset[int]:
    """Return the ids that end a reply, by the generation config if there is one."""
    try:
        end = GenerationConfig.from_pretrained(model_dir).eos_token_id
    except OSError:
        end = None
    if end is None:
        end = config.eos_token_id
    return frozenset([end] if isinstance(end, int) else end or [])
