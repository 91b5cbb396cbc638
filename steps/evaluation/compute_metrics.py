"""Predictions -> the closing table, the report, and the gate that promotes the model version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from zenml import get_step_context, link_artifact_to_model, log_metadata, step
from zenml.enums import ModelStages
from zenml.types import HTMLString
from zenml.utils.io_utils import get_global_config_directory

from agent.evaluation import BASELINES, START, WARM_START
from agent.metrics import Prediction, mcnemar, too_many_errors
from agent.metrics import compute_metrics as metrics_of
from agent.pass_at_k import pass_at_k
from agent.promotion import Promotion, decide_promotion
from configs.schema import EvaluationConfig
from reports.console import say
from reports.evaluation import evaluation_html
from steps.artifact_names import CHECKPOINT, METRICS, REPORT
from steps.evaluation.ask_production import PRODUCTION
from steps.evaluation.journal import delete_journal
from steps.model_registry import production_version
from training.checkpoint import Checkpoint


def summarize(predictions: list[Prediction]) -> dict[str, Any]:
    """Return the closing table as plain values: one entry per policy and non-learning row, and the paired test."""
    by_policy: dict[str, list[Prediction]] = {}
    sampled: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        if prediction.sample:
            sampled.setdefault(prediction.policy, []).append(prediction)
            continue
        by_policy.setdefault(prediction.policy, []).append(prediction)
    rows = {name: metrics_of(of_policy).model_dump(mode="json") for name, of_policy in by_policy.items()}
    for name, samples in sampled.items():
        rows[name] |= {"samples": len(samples), "sample_errors": sum(sample.error is not None for sample in samples)}
        paid = metrics_of([*by_policy[name], *samples])
        rows[name] |= {"cost": paid.cost, "judge_tokens": paid.judge_tokens, "judge_cost": paid.judge_cost}
        if (shares := pass_at_k(samples)) is not None:
            rows[name]["pass_at"] = {str(k): share for k, share in shares.items()}
    return {
        "n": len({prediction.scenario_id for prediction in predictions}),
        "policies": {name: row for name, row in rows.items() if name not in BASELINES},
        "baselines": {name: row for name, row in rows.items() if name in BASELINES},
        "paired": {
            f"trained_vs_{other}": mcnemar(by_policy["trained"], by_policy[other]).model_dump(mode="json")
            for other in (PRODUCTION, WARM_START, START, "base")
            if other in by_policy and not any(too_many_errors(by_policy[name]) for name in ("trained", other))
        },
    }


def _other_checkpoint(evaluated: Checkpoint) -> str | None:
    """Return why the model version cannot stand for the evaluated checkpoint, or None.

    `--checkpoint` may name any checkpoint, including an earlier one of the same run.
    """
    context = get_step_context()
    own = context.model.get_artifact(CHECKPOINT)
    if own is None or own.run_metadata["checksum"] == evaluated.manifest.adapter_checksum:
        return None
    return (
        f"the evaluated checkpoint is not the one that version {context.model.version} stands for (step "
        f"{own.run_metadata['step']}), so that would go to production instead"
    )


def _overtaken(compared_with: str) -> str | None:
    """Return why the comparison does not count any more, or None: another version went to production meanwhile."""
    model = get_step_context().model
    now = production_version(model.name)
    if now is None or now.name == model.version:
        return None
    checkpoint = now.get_artifact(CHECKPOINT)
    if checkpoint is not None and str(checkpoint.id) == compared_with:
        return None
    return f"{now.name} went to production during this evaluation: evaluate again, to be compared with it"


def _training_seconds(evaluated: Checkpoint) -> dict[str, float | None]:
    """Return the training time of the policies that are evaluated with a checkpoint."""
    before = evaluated.manifest.start_seconds
    return {"base": 0.0, WARM_START: before, START: before, "trained": evaluated.manifest.seconds}


# Never cached: it costs nothing, and it changes the stage that it reports.
@step(enable_cache=False)
def compute_metrics(
    config: EvaluationConfig,
    predictions: list[Prediction],
    checkpoint: Checkpoint,
    production: list[Prediction] | None = None,
    title: str = "E-mail search agent",
    compared_with: str = "",
) -> tuple[Annotated[dict[str, Any], METRICS], Annotated[HTMLString, REPORT]]:
    """Store metrics in the model version, which becomes the one in production if the gate lets it pass.

    `checkpoint` is the evaluated one; `production` has the answers of the version that is in production now, and `compared_with` is
    the id of its checkpoint: empty if there is none, or if it is the evaluated one. `title` is that of the report.
    """
    # A version that was trained on every held-out question has no answers, and is in production all the same.
    production = production or ([] if compared_with else None)
    summary = summarize([*predictions, *(production or [])])
    if checkpoint.manifest.step == 0:  # the policy before GRPO itself, which was asked once: no comparison
        for before in (WARM_START, START):
            summary["paired"].pop(f"trained_vs_{before}", None)
    for name, seconds in _training_seconds(checkpoint).items():
        if seconds is not None and name in summary["policies"]:
            summary["policies"][name]["training_seconds"] = seconds
    known = {
        name: row for name, row in summary["policies"].items() if row["comparable"] and row["accuracy"] is not None
    }
    accuracy = {name: row["accuracy"] for name, row in known.items()}
    other = _other_checkpoint(checkpoint)
    if other is None:  # otherwise these are not the figures of the version
        log_metadata({"evaluation": {"n": summary["n"], **accuracy}}, infer_model=True)
    of_policy = {name: [p for p in predictions if p.policy == name and not p.sample] for name in ("trained", "base")}
    promotion = decide_promotion(
        of_policy["trained"],
        of_policy["base"],
        production,
        alerts=sorted(set(checkpoint.manifest.alerts) - set(config.accepted_alerts)),
        accepted=config.accepted_alerts,
        floor=config.promotion_floor,
        min_gain=config.min_gain,
        significance=config.promotion_significance,
    )
    if promotion.promoted and other is not None:
        promotion = Promotion(promoted=False, reason=other)
    for name, row in summary["policies"].items():
        if not row["comparable"]:
            say(
                f"{name}: {row['errors']} of {row['errors'] + row['n']} questions ended in an error: no result",
                alarm=True,
            )
        if row.get("sample_errors") and "pass_at" not in row:
            say(f"{name}: {row['sample_errors']} of {row['samples']} samples ended in an error: no pass@k", alarm=True)
    context = get_step_context()
    rows = [p.model_dump(mode="json") for p in [*predictions, *(production or [])] if not p.sample]
    trained = checkpoint.manifest
    subtitle = f"run {trained.name}, step {trained.step} of {trained.base_model}"
    with FileLock(Path(get_global_config_directory()) / "promotion.lock"):
        if promotion.promoted and (overtaken := _overtaken(compared_with)):
            promotion = Promotion(promoted=False, reason=overtaken)
        summary["promotion"] = promotion.model_dump()
        page = HTMLString(evaluation_html(summary, rows, title=title, subtitle=subtitle))
        if other is None:
            log_metadata({"promotion": summary["promotion"]}, infer_model=True)
        if promotion.promoted:
            if context.model.get_artifact(CHECKPOINT) is None:
                link_artifact_to_model(context.step_run.inputs["checkpoint"][0], context.model)
            context.model.set_stage(ModelStages.PRODUCTION, force=True)
    say(f"{'promoted' if promotion.promoted else 'not promoted'} to production: {promotion.reason}")
    inputs = context.step_run.inputs
    for stored in [*inputs.get("predictions", []), *inputs.get("production", [])]:
        delete_journal(stored)
    return summary, page
