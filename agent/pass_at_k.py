"""pass@k: the probability that at least one of k sampled answers is correct."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from agent.metrics import Prediction, too_many_errors


def pass_at_k(samples: Sequence[Prediction]) -> dict[int, float] | None:
    """Map k to the mean over questions of the unbiased estimator 1 - C(n-c, k) / C(n, k) for c correct of n samples.

    Chen et al., "Evaluating Large Language Models Trained on Code" (2021), eq. 1. k is 1, 2, 4, ... and the largest n.
    Samples with an error or without a verdict do not count. pass@k omits questions with fewer than k counted samples.
    None with too many errors, because long questions fail first and the rest would be the easy ones.
    """
    if too_many_errors(samples):
        return None
    verdicts: dict[str, list[bool]] = {}
    for sample in samples:
        if sample.error is None and sample.correct is not None:
            verdicts.setdefault(sample.scenario_id, []).append(sample.correct)
    most = max(map(len, verdicts.values()), default=0)
    sizes = [2**power for power in range(most.bit_length()) if 2**power < most] + ([most] if most else [])
    return {k: statistics.fmean(_estimate(len(v), sum(v), k) for v in verdicts.values() if len(v) >= k) for k in sizes}


def _estimate(n: int, correct: int, k: int) -> float:
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)
