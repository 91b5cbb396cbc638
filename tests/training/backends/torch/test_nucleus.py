"""The nucleus of a distribution is that of a full sort, and rows of a batch keep their own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.backends.torch.sampling import _LARGEST, _nucleus, sample

pytestmark = pytest.mark.service


def _sorted_nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered, order = probabilities.sort(descending=True)
    kept = torch.zeros_like(probabilities)
    within = ordered.cumsum(0) - ordered < top_p
    kept[order[within]] = ordered[within]
    return kept


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.01, 1.0, 6.0]),
    vocabulary=st.sampled_from([3, _LARGEST, 500]),
    top_ps=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4),
)
def test_the_nucleus_is_that_of_a_full_sort(seed: int, spread: float, vocabulary: int, top_ps: list[float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(top_ps), vocabulary, generator=generator) * spread
    probabilities = torch.softmax(logits, -1)
    kept = _nucleus(probabilities, torch.tensor(top_ps))
    for row, top_p in enumerate(top_ps):
        expected = _sorted_nucleus(probabilities[row], torch.tensor(top_p))
        # Floating-point sums may disagree on the last token, whose share is then far below any difference that matters.
        assert (kept[row] - expected).abs().sum() <= probabilities[row].max() + 1e-6
        assert torch.equal(kept[row] > 0, expected > 0) or kept[row].sum() == pytest.approx(top_p, abs=1e-4)


def test_rows_keep_their_own_nucleus_and_the_plain_log_probability() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).repeat(3, 1)
    uniforms = torch.tensor([0.95, 0.95, 0.95], dtype=torch.float64)
    tokens, logprobs = sample(logits, [1.0, 1.0, 0.0], [1.0, 0.6, 1.0], [0.0] * 3, uniforms)
    assert tokens == [2, 1, 0]
    assert logprobs == pytest.approx([torch.log(torch.tensor(p)).item() for p in (0.2, 0.3, 0.5)], abs=1e-5)
