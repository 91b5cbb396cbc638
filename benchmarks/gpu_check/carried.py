"""Replacements for packages that a bare GPU machine lacks: the parts of pydantic and ART that the torch backend uses.

The replacement of pydantic is used where pydantic is absent. That of ART is used unless ART is imported already,
because importing ART takes longer than the check. A test compares the loss with ART's.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F


@contextmanager
def replaced_packages() -> Iterator[None]:
    """Import the torch backend inside. ART's replacement stays; pydantic's does not, since other packages look for the real one."""
    without_pydantic = importlib.util.find_spec("pydantic") is None
    if "art" not in sys.modules:
        sys.modules["art"] = _module("art")
        sys.modules["art.loss"] = _module("art.loss", loss_fn=cispo_loss)
    if without_pydantic:
        sys.modules["pydantic"] = _module(
            "pydantic", BaseModel=PlainModel, ConfigDict=dict, Field=plain_field, ValidationError=ValueError
        )
    try:
        yield
    finally:
        if without_pydantic:
            del sys.modules["pydantic"]


class PlainModel:
    """Stands in for `pydantic.BaseModel`: keeps values without validating them."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def plain_field(*, default: Any = None, **_: Any) -> Any:
    """Stands in for `pydantic.Field`."""
    return default


def cispo_loss(
    inputs: dict[str, torch.Tensor],
    new_logprobs: torch.Tensor,
    ref_logprobs: None,
    entropies: None,
    experimental_config: dict[str, Any],
    reduction: str,
) -> SimpleNamespace:
    """Return the sum of ART's default policy loss (`art.loss.loss_fn`, CISPO with ratios clipped to [0, 5])."""
    old, advantages, weights, mask = (
        F.pad(inputs[name][:, 1:].float(), (0, 1)) for name in ("logprobs", "advantages", "weights", "assistant_mask")
    )
    ratio = (new_logprobs.detach() - old).exp().clip(0.0, 5.0)
    return SimpleNamespace(policy_loss=-(ratio * advantages * new_logprobs * weights * mask).sum(), kl_policy_ref=None)


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    return module
