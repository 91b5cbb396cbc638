"""Weights that are in memory once, in 8 or 16 bits, and linear layers that multiply with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
import torch.nn.functional as F

from training.backends.torch.joint_linear import JointProduct, Matrices

CompactFormat = Literal["int8", "bfloat16"]
_BLOCK = 2**20
"""Numbers converted at a time: 2 MB in bfloat16, which stay in a core's cache until they are multiplied."""
_BACKWARD_BLOCK = 2**22
_LOADED_BLOCK = 2**20
_LARGEST = 127
_FEW_ROWS = 4
"""Up to this number of rows torch's own int8 product is faster than converted blocks, which more rows can share."""


@dataclass(frozen=True)
class AdapterColumns:
    """Adapters as columns that are appended to a `CompactWeight`: [x | x down^T] [W | up]^T."""

    down: torch.Tensor
    """[r, in]"""
    up: torch.Tensor
    """[out, r], divided by the row scales. The product multiplies by them again."""


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
        self._has_kernel = kept == "int8" and dtype == torch.bfloat16 and device.type == "cpu" and width % 64 == 0
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

    def product(self, x: torch.Tensor, columns: AdapterColumns | None = None) -> torch.Tensor:
        """Return x W^T [..., out] for `x` [..., in], in `dtype`. With `columns`, `x` [..., in + r] is [x | x down^T]."""
        x = x.to(self.dtype)
        if self._numbers.dtype == self.dtype and columns is None:
            return F.linear(x, self._numbers)
        flat = x.flatten(0, -2)
        out, width = self._numbers.shape
        if self._has_kernel and len(flat) <= _FEW_ROWS:
            assert self._scales is not None
            few = torch._weight_int8pack_mm(flat[:, :width].contiguous(), self._numbers, flat.new_ones(out))
            if columns is not None:
                few += F.linear(flat[:, width:], columns.up)
            return (few * self._scales).to(self.dtype).view(*x.shape[:-1], out)
        result = flat.new_empty(len(flat), out)
        for rows in _blocks(out, max(1, _BLOCK // width)):
            product = F.linear(flat, self._converted(rows, columns))
            if self._scales is None:
                result[:, rows] = product
            else:
                torch.mul(product, self._scales[rows], out=result[:, rows])
        return result.view(*x.shape[:-1], out)

    def transposed_product(self, x: torch.Tensor, columns: AdapterColumns | None = None) -> torch.Tensor:
        """Return x W as float32 [..., in] for `x` [..., out], multiplied in `dtype`; x [W | up] [..., in + r] with `columns`."""
        flat = x.flatten(0, -2)
        out, width = self._numbers.shape
        extra = 0 if columns is None else columns.up.shape[1]
        result = flat.new_zeros(len(flat), width + extra, dtype=torch.float32)
        if out >= width:
            for rows in _blocks(out, max(1, _BACKWARD_BLOCK // width)):
                result += self._scaled(flat, rows) @ self._converted(rows, columns)
        else:  # a small sum over the rows of W: adding up wide results would take longer than the products
            factor = self._scaled(flat, slice(0, out))
            for part in _blocks(width, max(1, _BACKWARD_BLOCK // out)):
                result[:, part] = factor @ self._numbers[:, part].to(self.dtype)
            if columns is not None:
                result[:, width:] = factor @ columns.up
        return result.view(*x.shape[:-1], width + extra)

    def adapter_columns(self, matrices: Matrices, rows: Sequence[slice], scale: float) -> AdapterColumns | None:
        """Return `matrices` as columns, in `dtype`. Matrix i changes the rows `rows[i]` by scale b a."""
        if not matrices:
            return None
        up = self._numbers.new_zeros(
            len(self._numbers), sum(a.shape[0] for a, _ in matrices.values()), dtype=torch.float32
        )
        first = 0
        for number, (_, b) in matrices.items():
            up[rows[number], first : first + b.shape[1]] = b.detach() * scale
            first += b.shape[1]
        if self._scales is not None:
            up /= self._scales[:, None]
        down = torch.cat([a.detach() for a, _ in matrices.values()])
        return AdapterColumns(down.to(self.dtype), up.to(self.dtype))

    def _converted(self, rows: slice, columns: AdapterColumns | None) -> torch.Tensor:
        """Return whole numbers of `rows` in `dtype`, with the columns of the adapters."""
        numbers = self._numbers[rows]
        if columns is None:
            return numbers.to(self.dtype)
        width = numbers.shape[1]
        block = numbers.new_empty(len(numbers), width + columns.up.shape[1], dtype=self.dtype)
        block[:, :width] = numbers
        block[:, width:] = columns.up[rows]
        return block

    def _scaled(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        if self._scales is None:
            return x[:, rows].to(self.dtype)
        scaled = torch.empty_like(x[:, rows], dtype=self.dtype, memory_format=torch.contiguous_format)
        return torch.mul(x[:, rows], self._scales[rows], out=scaled)

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
    """Linear layers that read the same input, on one `CompactWeight`. Adapters are never merged into it.

    The sum of a quantised weight and an adapter would have to be quantised again, and what is served would not be what
    is trained.
    """

    def __init__(self, linears: Sequence[torch.nn.Linear], kept: CompactFormat, dtype: torch.dtype) -> None:
        """Multiply in `dtype`, which is also the type of the outputs, for inputs of any type."""
        super().__init__(linears, dtype)
        self._compact = CompactWeight([linear.weight.detach() for linear in linears], kept, dtype)
        self._served: _Adapters | None = None
        self._trained: _Adapters | None = None
        self._trains = False

    @property
    def weight(self) -> torch.Tensor:
        """The base weights as float32 [out of all, in], computed anew."""
        return self._compact.dense()

    def merge(self, matrices: Matrices, scale: float) -> None:
        self._served = self._adapters(matrices, scale)

    def use(self, matrices: Matrices, scale: float) -> None:
        self._trained, self._trains = self._adapters(matrices, scale), True

    def use_merged(self) -> None:
        self._trained, self._trains = None, False

    def _adapters(self, matrices: Matrices, scale: float) -> _Adapters | None:
        columns = self._compact.adapter_columns(matrices, self.rows, scale)
        if columns is None:
            return None
        return _Adapters(columns, [self.rows[number] for number in matrices], [*matrices.values()], scale)

    def _products(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        adapters = self._trained if self._trains else self._served
        joined = _FrozenProduct.apply(
            x, self._compact, adapters, *chain.from_iterable(adapters.matrices if adapters else ())
        )
        return self._split(joined if self.bias is None else joined + self.bias)


@dataclass(frozen=True)
class _Adapters:
    columns: AdapterColumns
    rows: list[slice]
    """Rows of the joined layers that each adapter changes."""
    matrices: list[tuple[torch.Tensor, torch.Tensor]]
    scale: float


class _FrozenProduct(torch.autograd.Function):
    """x W^T + scale (x a^T) b^T with a frozen W, as one product with [W | up]; its gradient in x is one product too."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: CompactWeight, adapters: _Adapters | None, *matrices: torch.Tensor
    ) -> torch.Tensor:
        """Multiply. `matrices` are those of `adapters`, passed separately so that gradients reach them."""
        ctx.weight, ctx.adapters, ctx.dtype = weight, adapters, x.dtype
        if adapters is None:
            return weight.product(x)
        down = adapters.columns.down
        rank, width = down.shape
        joined = x.new_empty(*x.shape[:-1], width + rank, dtype=weight.dtype)
        joined[..., :width] = x
        joined[..., width:] = F.linear(joined[..., :width], down)
        ctx.save_for_backward(joined)
        return weight.product(joined, adapters.columns)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, adapters = ctx.weight, ctx.adapters
        if adapters is None:
            return weight.transposed_product(grad).to(ctx.dtype), None, None
        (joined,) = ctx.saved_tensors
        down = adapters.columns.down
        width = down.shape[1]
        grad_joined = weight.transposed_product(grad, adapters.columns)
        grad_down = grad_joined[..., width:].flatten(0, -2).to(weight.dtype)
        grad_x = grad_joined[..., :width] + (grad_down @ down).view(*grad.shape[:-1], width)
        grad, joined = grad.flatten(0, -2), joined.flatten(0, -2)
        grad_a = grad_down.t() @ joined[:, :width]
        grads: list[torch.Tensor] = []
        first = 0
        for rows, (a, _) in zip(adapters.rows, adapters.matrices, strict=True):
            last = first + a.shape[0]
            grads.append(grad_a[first:last])
            grads.append(grad[:, rows].t() @ joined[:, width + first : width + last] * adapters.scale)
            first = last
        return grad_x.to(ctx.dtype), None, None, *grads


def _quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole numbers [out, in] up to `_LARGEST` and scales [out], whose products are nearest to `weight`."""
    weight = weight.to(torch.float32, copy=True)
    scales = weight.abs().amax(-1) / _LARGEST
    scales[scales == 0] = 1.0
    return weight.div_(scales[:, None]).round_(), scales


def _blocks(size: int, block: int) -> list[slice]:
    return [slice(first, min(first + block, size)) for first in range(0, size, block)]
