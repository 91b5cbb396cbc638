"""The output head: the product that turns hidden states into logits, and its parts in the gradient of a log-probability."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from training.backends.torch.joint_linear import can_pack, pack, packed_linear


class OutputHead(Protocol):
    """A frozen matrix [vocabulary, width], as `CompactWeight` is one too."""

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocabulary] of hidden states [n, width]."""
        ...

    def transposed_product(self, x: torch.Tensor) -> torch.Tensor:
        """Return sums of rows [n, width], weighted by `x` [n, vocabulary]."""
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows `ids` [n] as [n, width]."""
        ...


class DenseHead:
    """A head in the network's own number format, with a copy in that of its matrix products for gradients."""

    def __init__(self, weight: torch.Tensor, matmul_dtype: torch.dtype) -> None:
        self._weight = weight
        self._factor = weight.to(matmul_dtype)
        self._packed = pack(weight) if can_pack(weight) else None

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight) if self._packed is None else packed_linear(x, self._packed)

    def transposed_product(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self._factor.dtype) @ self._factor

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._weight[ids]
