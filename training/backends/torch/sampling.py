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
    cut = [i for i in drawn if min_ps[i] > 0 and top_ps[i] == 1]
    if cut:
        best = logits.gather(1, chosen[:, None])[cut]
        least = best + _column(temperatures, cut, logits) * _column(min_ps, cut, logits).log()
        weights, tokens = _likely(_rows(logits, cut), best, least, _column(temperatures, cut, logits))
        chosen[cut] = tokens.gather(1, _picked(weights, uniforms[cut])[:, None])[:, 0]
    whole = sorted(set(drawn) - set(cut))
    if whole:
        probabilities = torch.softmax(_rows(logits, whole) / _column(temperatures, whole, logits), -1)
        nuclei = [row for row, i in enumerate(whole) if top_ps[i] < 1]
        if nuclei:
            limits = torch.tensor([top_ps[whole[row]] for row in nuclei], device=logits.device)
            probabilities[nuclei] = _nucleus(probabilities[nuclei], limits)
            least = _column(min_ps, whole, logits) * probabilities.amax(-1, keepdim=True)
            probabilities = probabilities.where(probabilities >= least, 0.0)
        chosen[whole] = _picked(probabilities, uniforms[whole])
    logprobs = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
    return chosen.tolist(), logprobs.tolist()


def _rows(logits: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    return logits if len(wanted) == len(logits) else logits[wanted]


def _column(values: Sequence[float], wanted: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[values[i]] for i in wanted], dtype=like.dtype, device=like.device)


def _likely(
    logits: torch.Tensor, best: torch.Tensor, least: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and ids [rows, most kept] of the tokens with logits of at least `least`, in the vocabulary's order.

    `best` are the largest logits, [rows, 1] like `least` and `temperatures`. Few tokens are kept, so the rest of sampling
    need not go over the vocabulary.
    """
    row, token = (logits >= least).nonzero(as_tuple=True)
    counts = row.bincount(minlength=len(logits))
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    weights = logits.new_zeros(len(logits), max(1, int(counts.max())))
    tokens = token.new_zeros(weights.shape)
    weights[row, place] = ((logits[row, token] - best[row, 0]) / temperatures[row, 0]).exp()
    tokens[row, place] = token
    return weights, tokens


def _picked(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution of each row of `weights` at `uniforms` [rows]."""
    cumulative = weights.cumsum(-1)
    targets = uniforms.to(cumulative) * cumulative[:, -1]
    picks = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    # Rounding can point past the last token with a probability above zero.
    return torch.minimum(picks, (cumulative < cumulative[:, -1:]).sum(-1))


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
