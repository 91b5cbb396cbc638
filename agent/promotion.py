"""The promotion gate: decide whether a new version replaces the one in production, and why."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from agent.metrics import MOST_ERRORS, Prediction, compute_metrics, mcnemar, too_many_errors


class Promotion(BaseModel):
    """The decision and its reason in one line."""

    promoted: bool
    reason: str


def decide_promotion(
    trained: Sequence[Prediction],
    base: Sequence[Prediction],
    production: Sequence[Prediction] | None,
    *,
    alerts: Sequence[str] = (),
    accepted: Sequence[str] = (),
    floor: float,
    min_gain: float,
    significance: float,
) -> Promotion:
    """Decide whether to promote the trained version.

    Promote if few questions ended in errors, no `alerts` are unresolved, and accuracy (0 to 1) is above `floor`, on the
    questions that both answered above the base's by `min_gain`, and not significantly worse than production's. Significantly worse:
    production alone answered more questions correctly than this version alone, with p <= `significance` (exact two-sided McNemar test
    on shared questions). `production` is None when nothing is in production yet, or when the evaluated version is. `accepted` are
    the alerts that no longer count.
    """
    accuracy = compute_metrics(trained).accuracy
    for whose, predictions in (("", trained), ("base: ", base), ("production: ", production or [])):
        if problem := too_many_errors(predictions):
            reason = f"{whose}{problem}, more than {MOST_ERRORS:.0%}: no result to compare; find the cause and evaluate again"
            return Promotion(promoted=False, reason=reason)
    if accuracy is None:
        return Promotion(promoted=False, reason="no held-out question has a reference answer, so accuracy is unknown")
    beside_base = mcnemar(trained, base)
    if beside_base.n == 0:
        return Promotion(promoted=False, reason="no question was answered by both this version and the base")
    if alerts:
        reason = (
            f"unresolved alerts of the training: {', '.join(alerts)}; if the answers are honest, evaluate again with "
        )
        return Promotion(
            promoted=False, reason=f"{reason}--set accepted_alerts=[{','.join(sorted({*accepted, *alerts}))}]"
        )
    if accuracy <= floor:
        return Promotion(promoted=False, reason=f"{accuracy:.1%} correct is not above promotion_floor={floor}")
    shared, of_base = ((beside_base.both + only) / beside_base.n for only in (beside_base.a_only, beside_base.b_only))
    # Rounded, because 0.3 - 0.2 is less than 0.1 in binary fractions, and 0.8 - 0.7 is more.
    if round(shared - of_base - min_gain, 9) <= 0:
        return Promotion(
            promoted=False,
            reason=f"{shared:.1%} correct is not above the base's {of_base:.1%} by min_gain={min_gain}",
        )
    if production is None:
        return Promotion(promoted=True, reason=f"{accuracy:.1%} correct, and there is no other version to compare with")
    paired = mcnemar(trained, production)
    if paired.n == 0:
        return Promotion(
            promoted=False, reason="no question was answered by both this version and the one in production"
        )
    compared = (
        f"of {paired.n} questions {paired.a_only} only by this version and {paired.b_only} only by the one in production "
        f"(McNemar p = {paired.p_value:.3f}, limit {significance})"
    )
    worse = paired.b_only > paired.a_only and paired.p_value <= significance
    return Promotion(promoted=not worse, reason=f"{'worse' if worse else 'not worse'}: {compared}")
