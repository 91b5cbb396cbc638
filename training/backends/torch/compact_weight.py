"""Weights that are in memory once, in 8 or 16 bits, and linear layers that multiply with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F

from training.backends.torch.joint_linear import JointProduct, Matrices

CompactFormat = Literal["int8", "bfloat16"]
_FORWARD_BLOCK = 2**19
"""Numbers converted at a time: 1 MB in bfloat16, which stays in a core's cache until it is multiplied."""
_BACKWARD_BLOCK = 2**22
_LOADED_BLOCK = 2**20
_LARGEST = 127


class CompactWeight:
    """A frozen matrix [out, in]: int8 numbers with one float32 scale per row, or bfloat16 numbers.

    Products convert a block of it at a time to the number format that they compute in. Every int8 number is exact in
    bfloat16, and scales are applied to the outputs.
    """

    def __init__(self, weights: Sequence[torch.Tensor], kept: CompactFormat, dtype: torch.dtype) -> None:
        """Keep the rows of all `weights`. Products compute in `dtype`."""
        self.dtype = dtype
        out, width = sum(len(weight) for weight in weights), weights[0].shape[1]
        device = weights[0].device
        self._numbers = torch.empty(out, width, dtype=getattr(torch, kept), device=device)
        self._scales = torch.empty(out, device=device) if kept == "int8" else None
        first = 0
        for block in (block for weight in weights for block in weight.split(max(1, _LOADED_BLOCK // width))):
            rows = slice(first, first := first + len(block))
            if self._scales is None:
                self._numbers[rows] = block
            else:
                self._numbers[rows], self._scales[rows] = _quantised(block)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows `ids` [...] as float32 [..., in]."""
        rows = self._numbers[ids].float()
        return rows if self._scales is None else rows * self._scales[ids][..., None]

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T [..., out] for `x` [..., in], in `dtype`."""
        x = x.to(self.dtype)
        if self._numbers.dtype == self.dtype:
            return F.linear(x, self._numbers)
        out, width = self._numbers.shape
        result = x.new_empty(*x.shape[:-1], out)
        for block in _blocks(out, max(1, _FORWARD_BLOCK // width)):
            result[..., block] = F.linear(x, self._numbers[block].to(self.dtype))
        return result if self._scales is None else result.mul_(self._scales)

    def transposed_product(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W as float32 [..., in] for `x` [..., out]; multiplied in `dtype`, added up in float32."""
        x = (x if self._scales is None else x * self._scales).to(self.dtype)
        out, width = self._numbers.shape
        result = torch.zeros(*x.shape[:-1], width, device=x.device)
        for block in _blocks(out, max(1, _BACKWARD_BLOCK // width)):
            result += x[..., block] @ self._numbers[block].to(self.dtype)
        return result

    def dense(self) -> torch.Tensor:
        """Return the matrix as float32, computed anew."""
        return self.rows(torch.arange(len(self._numbers), device=self._numbers.device))


class CompactEmbedding(torch.nn.Module):
    """Token embeddings [vocabulary, width] out of a `CompactWeight`."""

    def __init__(self, weight: CompactWeight, dtype: torch.dtype) -> None:
        """Return embeddings of `dtype`."""
        super().__init__()
        self._weight = weight
        self._dtype = dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self._weight.rows(ids).to(self._dtype)


class CompactLinear(JointProduct):
    """Linear layers that read the same input, on one `CompactWeight`. Adapters are always separate, and float32.

    The sum of a quantised weight and an adapter would have to be quantised again, and what is served would not be what
    is trained.
    """

    def __init__(self, linears: Sequence[torch.nn.Linear], kept: CompactFormat, dtype: torch.dtype) -> None:
        """Multiply in `dtype`, which is also the type of the outputs, for inputs of any type."""
        super().__init__(linears, dtype)
        self._compact = CompactWeight([linear.weight.detach() for linear in linears], kept, dtype)
        self._served: tuple[Matrices, float] = {}, 0.0
        self._trained: tuple[Matrices, float] | None = None

    @property
    def weight(self) -> torch.Tensor:
        """The base weights as float32 [out of all, in], computed anew."""
        return self._compact.dense()

    def merge(self, matrices: Matrices, scale: float) -> None:
        self._served = matrices, scale

    def use(self, matrices: Matrices, scale: float) -> None:
        self._trained = matrices, scale

    def use_merged(self) -> None:
        self._trained = None

    def _products(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        joined = _FrozenProduct.apply(x, self._compact)
        if self.bias is not None:
            joined = joined + self.bias
        outputs = list(self._split(joined))
        matrices, scale = self._served if self._trained is None else self._trained
        exact = x.float() if matrices else x
        for number, (a, b) in matrices.items():
            outputs[number] = outputs[number] + (F.linear(F.linear(exact, a), b) * scale).to(self.dtype)
        return outputs


class _FrozenProduct(torch.autograd.Function):
    """x W^T with a frozen W, of which back-propagation keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: CompactWeight) -> torch.Tensor:
        ctx.weight, ctx.dtype = weight, x.dtype
        return weight.product(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.weight.transposed_product(grad).to(ctx.dtype), None


def _quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers [out, in] up to `_LARGEST` and scales [out], whose products are nearest to `weight`."""
    weight = weight.to(torch.float32, copy=True)
    scales = weight.abs().amax(-1) / _LARGEST
    return weight.div_(torch.where(scales == 0, 1.0, scales)[:, None]).round_(), scales


def _blocks(size: int, block: int) -> list[slice]:
    return [slice(first, min(first + block, size)) for first in range(0, size, block)]
