"""Tokens are sampled from the distribution that temperature, top_p and min_p define. Seeds are fixed, so results repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from training.backends.torch import TorchSettings
from training.backends.torch.engine import Engine, SamplingParams
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.sampling import sample

pytestmark = pytest.mark.service

DRAWS = 100_000
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -1.5, -3.0, -float("inf")])


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def counted(temperature: float, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    uniforms = torch.rand(DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, _ = sample(LOGITS.expand(DRAWS, -1), [temperature] * DRAWS, [top_p] * DRAWS, [min_p] * DRAWS, uniforms)
    return torch.bincount(torch.tensor(tokens), minlength=len(LOGITS)).double()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_counts_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    counts, expected = counted(temperature), DRAWS * (LOGITS / temperature).softmax(-1).double()
    assert counts[-1] == 0, "a token without probability is never sampled"
    assert chi_square(counts[:-1], expected[:-1]) < 22.46, "p < 0.001 with six degrees of freedom"


def test_top_p_keeps_the_smallest_set_and_its_proportions() -> None:
    probabilities = LOGITS.softmax(-1).double()
    kept = int((probabilities.cumsum(-1) < 0.8).sum()) + 1
    assert 1 < kept < len(LOGITS) - 1
    counts = counted(1.0, top_p=0.8)
    expected = DRAWS * probabilities[:kept] / probabilities[:kept].sum()
    assert counts[kept:].sum() == 0 and chi_square(counts[:kept], expected) < 13.82, "p < 0.001, at most two degrees"


@pytest.mark.parametrize(("temperature", "min_p"), [(1.0, 0.2), (2.0, 0.2**0.5)])
def test_min_p_keeps_the_same_tokens_at_every_temperature_that_it_is_raised_for(
    temperature: float, min_p: float
) -> None:
    """A token with a fifth of the first one's probability has the square root of a fifth at temperature 2."""
    kept = int((LOGITS.softmax(-1) >= 0.2 * LOGITS.softmax(-1).max()).sum())
    assert kept == 3
    counts = counted(temperature, min_p=min_p)
    expected = DRAWS * (LOGITS[:kept] / temperature).softmax(-1).double()
    assert counts[kept:].sum() == 0 and chi_square(counts[:kept], expected) < 13.82, "p < 0.001, two degrees"


def test_the_logprob_is_that_of_the_plain_distribution_and_rows_do_not_mix() -> None:
    tokens, logprobs = sample(
        torch.stack([LOGITS] * 3), [0.0, 1.0, 0.3], [1.0, 1.0, 0.5], [0.0, 0.0, 0.5], torch.tensor([0.9, 0.9999, 0.99])
    )
    assert tokens[0] == 0 and tokens[1] > 0 and tokens[2] == 0
    assert logprobs == pytest.approx(LOGITS.log_softmax(-1)[tokens].tolist())


def test_the_largest_uniform_is_a_token_with_probability() -> None:
    [token], _ = sample(LOGITS[None], [1.0], [1.0], [0.0], torch.tensor([1.0]))
    assert token == 6


def test_rows_cut_by_min_p_take_the_tokens_of_the_whole_distribution() -> None:
    """Only likely tokens are looked at, in the vocabulary's order. Rows of noise, and rows without a cut, change no other."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 5000, generator=generator) * torch.rand(200, 1, generator=generator) * 8
    logits[7], logits[8] = float("nan"), -float("inf")
    temperatures, least = [0.5 + (row % 3) / 2 for row in range(200)], [0.02 + (row % 5) / 5 for row in range(200)]
    temperatures[3::20], least[5::20] = [0.0] * 10, [0.0] * 10
    uniforms = torch.rand(200, generator=generator, dtype=torch.float64)
    tokens, _ = sample(logits, temperatures, [1.0] * 200, least, uniforms)
    for row in set(range(200)) - {7, 8}:
        probabilities = (logits[row].double() / (temperatures[row] or 1e-9)).softmax(-1)
        kept = probabilities.where(probabilities >= least[row] * probabilities.max(), 0.0).cumsum(-1)
        assert tokens[row] == int((kept <= uniforms[row] * kept[-1]).sum()), row
    assert all(0 <= token < 5000 for token in tokens)


def test_the_engine_samples_from_the_models_distribution(llama_dir: Path, settings: TorchSettings) -> None:
    """Also with speculation, prefix reuse and batches of other requests, which must not change what is likely."""
    prompt, draws = list(range(3, 40)), 1500
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(llama_dir)(torch.tensor([prompt])).logits[0, -1]
    engine = Engine(PolicyNetwork(llama_dir, settings), settings)
    try:
        futures = [engine.submit(prompt, SamplingParams(max_tokens=1, seed=seed)) for seed in range(draws)]
        tokens = torch.tensor([future.result(600).token_ids[0] for future in futures])
    finally:
        engine.close()
    expected = draws * logits.softmax(-1).double()
    likely = expected.argsort(descending=True)[:20]
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    counts = torch.cat([counts[likely], (draws - counts[likely].sum())[None]])
    expected = torch.cat([expected[likely], (draws - expected[likely].sum())[None]])
    assert expected.min() > 5
    assert chi_square(counts, expected) < 45.3, "p < 0.001 with twenty degrees of freedom"
