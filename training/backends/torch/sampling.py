"""Sample the next tokens from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def sample(
    logits: torch.Tensor, temperatures: Sequence[float], top_ps: Sequence[float], uniforms: torch.Tensor
) -> tuple[list[int], list[float]]:
    """Return one token per row of `logits` [rows, vocabulary] and its log-probability.

    Temperature 0 takes the most likely token. Others invert the cumulative distribution at `uniforms` [rows], after
    dividing by the temperature and keeping the smallest set of tokens with probability `top_p`. The log-probability
    is that of the plain distribution (temperature 1, nothing cut), as vLLM reports it and ART's loss expects it.
    """
    chosen = logits.argmax(-1)
    drawn = [i for i, temperature in enumerate(temperatures) if temperature > 0]
    if drawn:
        rows = logits if len(drawn) == len(temperatures) else logits[drawn]
        scale = torch.tensor([temperatures[i] for i in drawn], device=logits.device)
        probabilities = torch.softmax(rows / scale[:, None], -1)
        for row, i in enumerate(drawn):
            if top_ps[i] < 1:
                probabilities[row] = _nucleus(probabilities[row], top_ps[i])
        cumulative = probabilities.cumsum(-1)
        targets = uniforms[drawn].to(cumulative) * cumulative[:, -1]
        picks = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
        # Rounding can point past the last token with a probability above zero.
        last = (cumulative < cumulative[:, -1:]).sum(-1)
        chosen[drawn] = torch.minimum(picks, last)
    logprobs = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
    return chosen.tolist(), logprobs.tolist()


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    ordered, order = probabilities.sort(descending=True)
    keep = ordered.cumsum(0) - ordered < top_p
    kept = torch.zeros_like(probabilities)
    kept[order[keep]] = ordered[keep]
    return kept
