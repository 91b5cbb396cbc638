"""Sample the next tokens from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_LARGEST = 64
"""Tokens of a row that `_nucleus` looks at first."""


def sample(
    logits: torch.Tensor,
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    min_ps: Sequence[float],
    uniforms: torch.Tensor,
) -> tuple[list[int], list[float]]:
    """Return one token per row of `logits` [rows, vocabulary] and its log-probability.

    Temperature 0 takes the most likely token. Others invert the cumulative distribution at `uniforms` [rows], after
    dividing by the temperature and keeping the smallest set of tokens with probability `top_p`, and of these the tokens
    with at least `min_p` times the probability of the most likely one. The log-probability is that of the plain
    distribution (temperature 1, nothing cut), as vLLM reports it and ART's loss expects it.
    """
    chosen = logits.argmax(-1)
    drawn = [i for i, temperature in enumerate(temperatures) if temperature > 0]
    if drawn:
        rows = logits if len(drawn) == len(temperatures) else logits[drawn]
        scale = torch.tensor([temperatures[i] for i in drawn], device=logits.device)
        probabilities = torch.softmax(rows / scale[:, None], -1)
        cut = [row for row, i in enumerate(drawn) if top_ps[i] < 1]
        if cut:
            limits = torch.tensor([top_ps[drawn[row]] for row in cut], device=logits.device)
            probabilities[cut] = _nucleus(probabilities[cut], limits)
        least = torch.tensor([min_ps[i] for i in drawn], device=logits.device)
        if least.any():
            probabilities = probabilities.where(
                probabilities >= least[:, None] * probabilities.amax(-1, keepdim=True), 0.0
            )
        cumulative = probabilities.cumsum(-1)
        targets = uniforms[drawn].to(cumulative) * cumulative[:, -1]
        picks = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
        # Rounding can point past the last token with a probability above zero.
        last = (cumulative < cumulative[:, -1:]).sum(-1)
        chosen[drawn] = torch.minimum(picks, last)
    logprobs = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
    return chosen.tolist(), logprobs.tolist()


def _nucleus(probabilities: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Return `probabilities` [rows, vocabulary] without the tokens beyond the smallest sets that reach `top_ps` [rows].

    Nearly every set is small, so only rows whose `_LARGEST` tokens do not reach their limit are sorted whole.
    """
    size = min(_LARGEST, probabilities.shape[1])
    ordered, order = probabilities.topk(size, -1)
    kept = torch.zeros_like(probabilities)
    kept.scatter_(1, order, torch.where(ordered.cumsum(-1) - ordered < top_ps[:, None], ordered, 0.0))
    if size < probabilities.shape[1]:
        for row in (ordered.sum(-1) < top_ps).nonzero()[:, 0].tolist():
            ordered_row, order_row = probabilities[row].sort(descending=True)
            within = ordered_row.cumsum(0) - ordered_row < top_ps[row]
            kept[row].zero_()
            kept[row, order_row[within]] = ordered_row[within]
    return kept
