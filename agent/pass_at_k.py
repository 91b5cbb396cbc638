"""pass@k: the chance that at least one of k sampled answers is correct."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from agent.metrics import Prediction


def pass_at_k(samples: Sequence[Prediction]) -> dict[int, float]:
    """k -> mean over questions of the unbiased estimator 1 - C(n-c, k) / C(n, k), c of n samples being correct.

    Chen et al., "Evaluating Large Language Models Trained on Code" (2021), eq. 1. k is 1, 2, 4, ... and the largest n. Samples
    that ended in an error or that nobody can judge do not count; a question with fewer than k others is left out of pass@k.
    """
    verdicts: dict[str, list[bool]] = {}
    for sample in samples:
        if sample.error is None and sample.correct is not None:
            verdicts.setdefault(sample.scenario_id, []).append(sample.correct)
    most = max(map(len, verdicts.values()), default=0)
    sizes = [2**power for power in range(most.bit_length()) if 2**power < most] + ([most] if most else [])
    return {k: statistics.fmean(_estimate(len(v), sum(v), k) for v in verdicts.values() if len(v) >= k) for k in sizes}


def _estimate(n: int, correct: int, k: int) -> float:
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)
