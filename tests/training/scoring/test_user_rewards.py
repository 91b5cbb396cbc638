"""What a user's reward function may return: any finite real number."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from training.errors import BadInput
from training.scoring.user_functions import reward_by


def reward(value: Any) -> float:
    def own(_: object) -> Any:
        return value

    return asyncio.run(reward_by("reward_function", own, None))


@pytest.mark.parametrize(
    "half",
    [
        *(np.float16(0.5), np.float32(0.5), np.float64(0.5), np.longdouble(0.5), np.array(0.5), Decimal("0.5")),
        *(Fraction(1, 2), torch.tensor(0.5), torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(0.5, requires_grad=True)),
    ],
    ids=repr,
)  # fmt: skip
def test_real_numbers_of_every_library(half: Any) -> None:
    assert reward(half) == 0.5 and type(reward(half)) is float


@pytest.mark.parametrize(
    "one",
    [1, True, np.int64(1), np.uint8(1), np.bool_(True), torch.tensor(1), torch.tensor(True), Decimal(1)],
    ids=repr,
)
def test_whole_numbers_of_every_library(one: Any) -> None:
    assert reward(one) == 1.0 and type(reward(one)) is float


@pytest.mark.parametrize(
    "value",
    [
        *(None, "1", b"1", [1.0], {"reward": 1}, 1j, np.complex64(1), torch.tensor(1j), np.array([1.0]), torch.ones(1), torch.ones(2)),
        *(float("nan"), float("inf"), np.float32("-inf"), Decimal("nan"), Decimal("sNaN"), Decimal("Infinity"), torch.tensor(float("nan"))),
        *(10**400, -(10**400), 10**5000, Decimal(10) ** 400, Fraction(10**400), np.datetime64("2024-01-01"), object()),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_everything_else_is_one_line(value: Any) -> None:
    with pytest.raises(BadInput, match="^reward_function: own returned .*which is not a finite number$") as refused:
        reward(value)
    assert len(str(refused.value)) < 250 and "\n" not in str(refused.value)
