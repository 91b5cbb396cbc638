"""Fused linear layers: compute layers with the same input as one product, with an adapter merged or separate."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
import torch.nn.functional as F

_PACKED_FOR_ROWS = 24
_SHAPES_REMEMBERED = 256
# oneDNN and torch cache their preparations for each shape of a product, 1,024 shapes by default. Almost every update has
# another number of tokens, so a hundred updates would fill gigabytes. Both read the limit at their first product.
for _limit in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_limit, str(_SHAPES_REMEMBERED))


Matrices = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Adapter matrices a [r, in] and b [out, r] by the number of the layer."""


class JointProduct(ABC):
    """Frozen linear layers that read the same input, computed together, with adapters for serving and for training."""

    def __init__(self, linears: Sequence[torch.nn.Linear], dtype: torch.dtype) -> None:
        """Take sizes and biases from `linears`. Outputs are of `dtype`, for inputs of any type."""
        edges = accumulate((linear.out_features for linear in linears), initial=0)
        self.rows = [slice(first, last) for first, last in pairwise(edges)]
        self.in_features = linears[0].in_features
        self.dtype = dtype
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases).to(dtype) if biases else None
        self._input: torch.Tensor | None = None
        self._outputs: Sequence[torch.Tensor] = ()

    @property
    @abstractmethod
    def weight(self) -> torch.Tensor:
        """The base weights [out of all, in]."""

    @abstractmethod
    def merge(self, matrices: Matrices, scale: float) -> None:
        """Serve the base weights with exactly these adapters, which must not change any more."""

    @abstractmethod
    def use(self, matrices: Matrices, scale: float) -> None:
        """Compute with the base weights and these adapters, differentiably and without served ones, until `use_merged`."""

    @abstractmethod
    def use_merged(self) -> None:
        """Compute with the served adapters again."""

    @abstractmethod
    def _products(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the outputs of all layers."""

    def output(self, x: torch.Tensor, number: int) -> torch.Tensor:
        """Return the output of layer `number` for `x`.

        The model's own code calls the layers one by one, so that every architecture with these layers works. The first
        call with an `x` computes all. They are kept for this very `x` until the last layer is called: layers called in
        another order give the same outputs, and only compute more often.
        """
        if x is not self._input:
            self._input, self._outputs = x, self._products(x)
        output = self._outputs[number]
        if number == len(self.rows) - 1:
            self._input, self._outputs = None, ()
        return output

    def _split(self, joined: torch.Tensor) -> Sequence[torch.Tensor]:
        return joined.split([rows.stop - rows.start for rows in self.rows], dim=-1)


class JointLinear(JointProduct):
    """Layers whose weights are kept in the number format of their products, computed as one product.

    On CPUs the served weight is packed for oneDNN's kernels. They are 1.5 to 2 times as fast as the plain ones on the few
    rows of a decoding step, and a tenth faster on long prompts. Packed weights have no gradient, so training uses the
    plain base weight, which never changes. The served weight is built on demand and dropped for training, whose
    activations need the memory.
    """

    def __init__(self, linears: Sequence[torch.nn.Linear], dtype: torch.dtype) -> None:
        """Multiply in `dtype`, which is also the type of the outputs, for inputs of any type."""
        super().__init__(linears, dtype)
        self._plain: torch.Tensor | None = torch.cat([linear.weight.detach() for linear in linears]).to(dtype)
        self._packs = can_pack(self._plain)
        self._served: torch.Tensor | None = None
        self._merged: Matrices = {}
        self._scale = 0.0
        self._wide: torch.Tensor | None = None
        self._explicit: _Explicit | None = None
        self._use_base = False

    @property
    def weight(self) -> torch.Tensor:
        """The base weights [out of all, in]."""
        if self._plain is not None:
            return self._plain
        assert self._served is not None, "one of the two is kept"
        return self._served.to_dense()

    def forget_plain(self) -> None:
        """Keep only the packed weight, for layers that are never trained."""
        if self._packs:
            self._served, self._plain = self._weight_to_serve(), None

    def merge(self, matrices: Matrices, scale: float) -> None:
        self._plain = self.weight
        self._served, self._merged, self._scale = None, matrices, scale

    def use(self, matrices: Matrices, scale: float) -> None:
        self._use_base, self._explicit = True, None
        if self._plain is not None:
            self._served = None
        if not matrices:
            return
        rank = sum(a.shape[0] for a, _ in matrices.values())
        if self._wide is None or self._wide.shape[1] != self.in_features + rank:
            weight = self.weight
            self._wide = F.pad(weight, (0, rank))
            if self._plain is not None:
                self._plain = self._wide[:, : self.in_features]  # a view, so that the weight is in memory once
        self._explicit = _Explicit(
            self._wide, self.bias, scale, [self.rows[number] for number in matrices], [*matrices.values()]
        )

    def use_merged(self) -> None:
        self._use_base, self._explicit = False, None

    def _products(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        return self._split(self._product(x))

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if self._explicit is not None:
            return _AdaptedProduct.apply(x, self._explicit, *chain.from_iterable(self._explicit.matrices))
        factor = x.to(self.dtype)
        if self._use_base or torch.is_grad_enabled():
            return F.linear(factor, self.weight, self.bias)
        if self._served is None:
            self._served = self._weight_to_serve()
        linear = packed_linear if self._packs else F.linear
        return linear(factor, self._served, self.bias)

    @torch.inference_mode(False)  # tensors of inference mode cannot take part in training
    @torch.no_grad()
    def _weight_to_serve(self) -> torch.Tensor:
        """Return the plain weight with the merged adapters, packed if possible."""
        weight = self._plain
        assert weight is not None, "packed only after merging"
        if self._merged:
            merged = weight.to(torch.float32, copy=True)
            for number, (a, b) in self._merged.items():
                merged[self.rows[number]].addmm_(b.float(), a.float(), alpha=self._scale)
            weight = merged.to(self.dtype)
        return pack(weight) if self._packs else weight


class Projection(torch.nn.Module):
    """One layer of a `JointProduct` that replaces the model's own linear layer."""

    def __init__(self, joint: JointProduct, number: int) -> None:
        super().__init__()
        self.joint = joint
        self.number = number

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in), without unpacking the weight of a frozen layer."""
        rows = self.joint.rows[self.number]
        return rows.stop - rows.start, self.joint.in_features

    @property
    def weight(self) -> torch.Tensor:
        """The base weight [out, in]."""
        return self.joint.weight[self.joint.rows[self.number]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joint.output(x, self.number)


class _Explicit:
    """Adapters a_i [r_i, in], b_i [out_i, r_i] appended to the weights: [W | scale b], one block of columns per layer."""

    def __init__(
        self,
        wide: torch.Tensor,
        bias: torch.Tensor | None,
        scale: float,
        rows: Sequence[slice],
        matrices: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Write the adapter columns of `wide` [out, in + r]. Its weight columns are already filled."""
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
    """Compute x W^T + scale (x a^T) b^T as the single product [x | x a^T] [W | scale b]^T with frozen W.

    The gradient of [x | x a^T] is a single product too. So there are two large products, and four thin ones with a and b.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, explicit: _Explicit, *matrices: torch.Tensor) -> torch.Tensor:
        """Multiply. `matrices` are those of `explicit`, passed separately so that gradients reach them."""
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
    """Return whether `weight` can be packed for oneDNN."""
    on_cpu = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
    return on_cpu and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and multiplies_bfloat16()))


def multiplies_bfloat16() -> bool:
    """Return whether this processor has instructions for bfloat16 products."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return `weight` [out, in] in the blocked layout for about two dozen rows; `to_dense` restores it exactly."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
