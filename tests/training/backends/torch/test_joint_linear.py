"""Layers computed together give what they give one by one, adapted or not."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from training.backends.torch.joint_linear import JointLinear, Projection

pytestmark = pytest.mark.service

WIDTH, HEIGHTS = 12, (8, 4, 6)
Matrices = dict[int, tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def in_float64() -> Iterator[None]:
    """So that a difference is a mistake, not rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def layers(*, bias: bool) -> list[torch.nn.Linear]:
    torch.manual_seed(0)
    return [torch.nn.Linear(WIDTH, height, bias=bias).requires_grad_(False) for height in HEIGHTS]


def adapters(**ranks: int) -> Matrices:
    """`first=2` adapts the first layer with rank 2."""
    numbers = {"first": 0, "second": 1, "third": 2}
    torch.manual_seed(1)
    return {
        numbers[name]: (
            torch.randn(rank, WIDTH).requires_grad_(),
            torch.randn(HEIGHTS[numbers[name]], rank).requires_grad_(),
        )
        for name, rank in ranks.items()
    }


def one_by_one(linears: list[torch.nn.Linear], matrices: Matrices, scale: float, x: torch.Tensor) -> list[torch.Tensor]:
    outputs = [linear(x) for linear in linears]
    for number, (a, b) in matrices.items():
        outputs[number] = outputs[number] + scale * F.linear(F.linear(x, a), b)
    return outputs


def together(joint: JointLinear, x: torch.Tensor) -> list[torch.Tensor]:
    return [Projection(joint, number)(x) for number in range(len(HEIGHTS))]


def gradients(outputs: list[torch.Tensor], x: torch.Tensor, matrices: Matrices) -> tuple[torch.Tensor, ...]:
    """Of a sum in which every output counts differently."""
    weighted = sum((number + 1) * output.square().sum() for number, output in enumerate(outputs))
    return torch.autograd.grad(weighted, [x, *(matrix for pair in matrices.values() for matrix in pair)])


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ranks", [{"first": 2, "second": 2, "third": 2}, {"first": 2, "third": 3}, {"second": 1}])
def test_outputs_and_gradients_are_those_of_the_layers_alone(bias: bool, ranks: dict[str, int]) -> None:
    linears, matrices = layers(bias=bias), adapters(**ranks)
    joint = JointLinear(linears, torch.get_default_dtype())
    x = torch.randn(1, 5, WIDTH, requires_grad=True)
    joint.use(matrices, 0.5)
    outputs, expected = together(joint, x), one_by_one(linears, matrices, 0.5, x)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(gradients(outputs, x, matrices), gradients(expected, x, matrices))


@torch.no_grad()
@pytest.mark.usefixtures("in_float64")
def test_the_order_of_calls_does_not_matter() -> None:
    linears = layers(bias=True)
    joint = JointLinear(linears, torch.get_default_dtype())
    inputs = [torch.randn(1, 5, WIDTH) for _ in range(2)]
    for order in itertools.permutations(itertools.product(range(2), range(3)), 4):
        for chosen, number in order:
            output = Projection(joint, number)(inputs[chosen])
            torch.testing.assert_close(output, linears[number](inputs[chosen]))


@pytest.mark.usefixtures("in_float64")
def test_one_adapter_after_another_leaves_nothing_behind() -> None:
    linears = layers(bias=False)
    joint = JointLinear(linears, torch.get_default_dtype())
    x = torch.randn(1, 5, WIDTH)
    for matrices in (
        adapters(first=2, second=2),
        adapters(second=2, third=2),
        adapters(first=3),
        {},
        adapters(third=4),
    ):
        joint.use(matrices, 2.0)
        with torch.no_grad():
            torch.testing.assert_close(together(joint, x), one_by_one(linears, matrices, 2.0, x))
        joint.use_merged()
        for number, linear in enumerate(linears):
            assert torch.equal(Projection(joint, number).weight, linear.weight)


@torch.no_grad()
def test_merged_adapters_are_served_and_hidden_from_training() -> None:
    linears, served, trained = layers(bias=True), adapters(first=2, third=1), adapters(second=2)
    joint = JointLinear(linears, torch.get_default_dtype())
    x = torch.randn(1, 5, WIDTH)
    joint.merge(served, 0.5)
    torch.testing.assert_close(together(joint, x), one_by_one(linears, served, 0.5, x))
    joint.use(trained, 1.0)
    torch.testing.assert_close(together(joint, x), one_by_one(linears, trained, 1.0, x))
    joint.use({}, 0.0)
    torch.testing.assert_close(together(joint, x), one_by_one(linears, {}, 0.0, x))
    joint.use_merged()
    torch.testing.assert_close(together(joint, x), one_by_one(linears, served, 0.5, x))
    joint.merge({}, 0.0)
    torch.testing.assert_close(together(joint, x), one_by_one(linears, {}, 0.0, x))


def test_the_served_weight_makes_room_for_training_and_comes_back() -> None:
    linears, adapter = layers(bias=False), adapters(second=2)
    joint = JointLinear(linears, torch.float32)
    x = torch.randn(1, 5, WIDTH)
    joint.merge(adapter, 0.5)
    with torch.no_grad():
        before = together(joint, x)
    served = weakref.ref(joint._served)
    joint.use(adapter, 0.5)
    assert served() is None
    joint.use_merged()
    with torch.no_grad():
        torch.testing.assert_close(together(joint, x), before, rtol=0, atol=0)


def test_caches_per_product_shape_are_bounded() -> None:
    """In a process of its own: the limits are read from the environment once."""
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    show = f"import os, training.backends.torch.joint_linear; print(*map(os.environ.get, {names}))"
    without = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    for environment, expected in ((without, "256 256"), ({**without, "LRU_CACHE_CAPACITY": "7"}, "256 7")):
        shown = subprocess.run(
            [sys.executable, "-c", show], env=environment, capture_output=True, text=True, timeout=900, check=True
        )
        assert shown.stdout.split("\n")[-2] == expected
