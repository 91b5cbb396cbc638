"""Evaluation metrics: one `Prediction` per question and policy, `PolicyMetrics` per policy, and paired tests."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from agent.judges.exact import normalise

Z95 = 1.959963984540054
"""Quantile of the standard normal distribution that leaves 2.5% above it."""


MOST_ERRORS = 0.02
"""Maximum share of questions with an error. Above it the rest is a biased sample, because long questions fail first."""


class Prediction(BaseModel):
    """One policy's result on one question. With an `error` (class name) there is no result to judge."""

    policy: str
    scenario_id: str
    kind: str = "unknown"
    question: str
    reference: str
    inbox_address: str = ""
    query_date: str = ""
    """Query date in the format of the service."""
    answer: str | None = None
    source_ids: tuple[str, ...] = ()
    gold_ids: tuple[str, ...] = ()
    correct: bool | None = None
    same_meaning: bool | None = None
    """Whether the language model accepts the answer. None unless both judges were asked."""
    reason: str = ""
    turns: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    outcome: str = "answered"
    error: str | None = None
    sample: int = 0
    """0: the answer used to compare policies; 1 and up: samples for pass@k."""
    prompt_tokens: int = 0
    cost: float | None = None
    """US dollars of the policy's replies; None without a known price."""
    judge_tokens: int = 0
    """Prompt tokens of the judge."""
    judge_cost: float | None = None
    transcript: list[dict[str, Any]] = Field(default_factory=list)
    measured: dict[str, Any] = Field(default_factory=dict)
    """What figures of the task's own are computed from."""


class KindMetrics(BaseModel):
    """Accuracy on the questions of one kind."""

    n: int
    accuracy: float | None


class Seconds(BaseModel):
    """Wall time per question."""

    median: float
    p95: float


class PolicyMetrics(BaseModel):
    """Metrics of one policy over its `n` runs without error. The `errors` other runs count nowhere else.

    `source_recall` and `source_precision` are means over questions with known gold mails, and None if there is none: see
    `source_recall_of` and `source_precision_of`.
    """

    n: int
    errors: int
    error_classes: dict[str, int]
    comparable: bool
    """Whether at most `MOST_ERRORS` of the questions ended in an error, so that policies can be compared."""
    accuracy: float | None
    ci95: tuple[float, float] | None
    by_meaning: float | None = None
    """Share of judged questions whose answer the language model accepts. None unless both judges were asked."""
    answer_rate: float
    source_recall: float | None
    source_precision: float | None
    token_f1: float | None
    turns: float
    seconds: Seconds
    outcomes: dict[str, int]
    by_kind: dict[str, KindMetrics]
    prompt_tokens: float = 0.0
    """Mean over questions of the sum over replies."""
    cost: float | None = None
    judge_tokens: int = 0
    judge_cost: float | None = None
    """US dollars summed over questions, like `cost`; None without a known price."""


class McNemar(BaseModel):
    """Two policies on the same `n` questions: `a_only` were right only in a, `b_only` only in b, `both` in both."""

    n: int
    a_only: int
    b_only: int
    both: int
    p_value: float


def wilson_interval(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Return the score interval of a proportion (E. B. Wilson, JASA 22, 1927): 95% by default, (0, 1) for n = 0.

    Raises ValueError unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and {n}, not {successes}")
    if n == 0:
        return 0.0, 1.0
    share, spread = successes / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return low, high


def too_many_errors(predictions: Sequence[Prediction]) -> str | None:
    """Return the errors that make these predictions incomparable; `None` when at most `MOST_ERRORS` of them failed."""
    failed = Counter(prediction.error for prediction in predictions if prediction.error is not None)
    if failed.total() <= MOST_ERRORS * len(predictions):
        return None
    kinds = ", ".join(f"{count} {name}" for name, count in failed.most_common())
    return f"{failed.total()} of {len(predictions)} questions ended in an error ({kinds})"


def mcnemar(a: Sequence[Prediction], b: Sequence[Prediction]) -> McNemar:
    """Compute the exact two-sided McNemar test (Q. McNemar, Psychometrika 12, 1947), paired by scenario id.

    Under the null hypothesis the questions that only one of the two gets right fall to either side with probability
    one half, so p = min(1, 2 P[X <= min(a_only, b_only)]) with X ~ Binomial(a_only + b_only, 1/2). A question with an
    error of either policy, or asked of only one, is not a pair. Raise ValueError on a repeated id.
    """
    right_a, right_b = _verdicts(a), _verdicts(b)
    shared = right_a.keys() & right_b.keys()
    a_only = sum(right_a[id] and not right_b[id] for id in shared)
    b_only = sum(right_b[id] and not right_a[id] for id in shared)
    discordant = a_only + b_only
    tail = sum(math.comb(discordant, k) for k in range(min(a_only, b_only) + 1))
    both = sum(right_a[id] and right_b[id] for id in shared)
    return McNemar(n=len(shared), a_only=a_only, b_only=b_only, both=both, p_value=min(1.0, 2 * tail / 2**discordant))


def token_f1(reference: str, answer: str | None) -> float:
    """Return the F1 score over the multiset of words, as in the evaluation script of SQuAD v1.1.

    Words are those of `normalise`. Two texts without words score 1, a missing answer 0.
    """
    if answer is None:
        return 0.0
    ours, theirs = normalise(reference).split(), normalise(answer).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def source_recall_of(prediction: Prediction) -> float:
    """Return the share of gold mails that were cited: |cited ∩ gold| / |gold|; 0 without an answer."""
    gold = set(prediction.gold_ids)
    return len(gold & set(prediction.source_ids)) / len(gold) if gold else 0.0


def source_precision_of(prediction: Prediction) -> float:
    """Return the share of cited mails that are gold: |cited ∩ gold| / |cited|; 0 when nothing was cited."""
    cited = set(prediction.source_ids)
    return len(cited & set(prediction.gold_ids)) / len(cited) if cited else 0.0


def compute_metrics(predictions: Sequence[Prediction]) -> PolicyMetrics:
    """Compute the metrics of one policy.

    Answer rate, source recall, turns and seconds are over all runs without error, whether they answered or not; source
    precision is over those that answered. Accuracy, its interval and token-F1 are over judged runs, and None if there is
    none. Source recall and precision are over questions with known gold mails, and None if there is none. The
    mean of no values is otherwise 0.
    """
    runs = [prediction for prediction in predictions if prediction.error is None]
    answered = [run for run in runs if run.answer is not None]
    judged = [run for run in runs if run.correct is not None]
    sourced = [run for run in runs if run.gold_ids]
    cited = [run for run in sourced if run.answer is not None]
    right = sum(run.correct is True for run in judged)
    kinds = sorted({run.kind for run in runs})
    seconds = sorted(run.seconds for run in runs)
    return PolicyMetrics(
        n=len(runs),
        errors=len(predictions) - len(runs),
        comparable=too_many_errors(predictions) is None,
        error_classes=dict(sorted(Counter(p.error for p in predictions if p.error is not None).items())),
        accuracy=right / len(judged) if judged else None,
        ci95=wilson_interval(right, len(judged)) if judged else None,
        by_meaning=_mean([run.same_meaning is True for run in judged])
        if any(run.same_meaning is not None for run in judged)
        else None,
        answer_rate=len(answered) / len(runs) if runs else 0.0,
        source_recall=_mean([source_recall_of(run) for run in sourced]) if sourced else None,
        source_precision=_mean([source_precision_of(run) for run in cited]) if sourced else None,
        token_f1=_mean([token_f1(run.reference, run.answer) for run in judged]) if judged else None,
        turns=_mean([run.turns for run in runs]),
        seconds=Seconds(median=statistics.median(seconds) if seconds else 0.0, p95=_quantile(seconds, 0.95)),
        outcomes=dict(sorted(Counter(run.outcome for run in runs).items())),
        prompt_tokens=_mean([run.prompt_tokens for run in runs]),
        cost=_total([prediction.cost for prediction in predictions]),
        judge_tokens=sum(prediction.judge_tokens for prediction in predictions),
        judge_cost=_total([prediction.judge_cost for prediction in predictions]),
        by_kind={kind: _kind_metrics([run for run in runs if run.kind == kind]) for kind in kinds},
    )


def _kind_metrics(runs: Sequence[Prediction]) -> KindMetrics:
    judged = [run.correct for run in runs if run.correct is not None]
    return KindMetrics(n=len(runs), accuracy=sum(judged) / len(judged) if judged else None)


def _verdicts(predictions: Sequence[Prediction]) -> dict[str, bool]:
    runs = [p for p in predictions if p.error is None and p.correct is not None]
    verdicts = {run.scenario_id: run.correct is True for run in runs}
    if len(verdicts) != len(runs):
        raise ValueError("a paired test needs each scenario id once per policy")
    return verdicts


def _total(prices: Sequence[float | None]) -> float | None:
    known = [price for price in prices if price is not None]
    return sum(known) if known else None


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile by nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
