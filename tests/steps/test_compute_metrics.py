"""The step that closes an evaluation: what the gate does to the model version, and where its reason can be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from zenml.enums import ModelStages

from agent.metrics import Prediction
from configs.schema import EvaluationConfig
from steps.evaluation import compute_metrics as module
from steps.evaluation.ask_production import PRODUCTION


def answers(policy: str, right: int, n: int = 12) -> list[Prediction]:
    return [
        Prediction(policy=policy, scenario_id=str(i), question="When?", reference="14:30", correct=i < right)
        for i in range(n)
    ]


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[ModelStages]:
    """The stages that the evaluated model version was put in."""
    put: list[ModelStages] = []
    own = SimpleNamespace(run_metadata={"checksum": "of r1", "step": 3})
    model = SimpleNamespace(
        set_stage=lambda stage, force: put.append(stage), get_artifact=lambda name: own, version="r1", name="model"
    )
    monkeypatch.setattr(module, "production_version", lambda model: None)
    step_run = SimpleNamespace(inputs={"checkpoint": ["the evaluated artifact"]})
    monkeypatch.setattr(module, "get_step_context", lambda: SimpleNamespace(model=model, step_run=step_run))
    monkeypatch.setattr(module, "log_metadata", lambda *_, **__: None)
    return put


def close(
    right: int, of_production: int | None, alerts: tuple[str, ...] = (), **limits: Any
) -> tuple[dict[str, Any], str]:
    predictions = answers("base", 0) + answers("trained", right)
    production = None if of_production is None else answers(PRODUCTION, of_production)
    return module.compute_metrics.entrypoint(EvaluationConfig(**limits), predictions, evaluated(alerts), production)


def evaluated(alerts: tuple[str, ...] = (), step: int = 3) -> SimpleNamespace:
    manifest = SimpleNamespace(
        alerts=alerts,
        name="r1",
        step=step,
        base_model="tiny",
        adapter_checksum="of r1",
        seconds=60.0,
        start_seconds=30.0,
    )
    return SimpleNamespace(manifest=manifest)


def test_the_first_version_goes_to_production(stages: list[ModelStages]) -> None:
    summary, report = close(3, None)
    assert "run r1, step 3 of tiny" in report and "promoted to production</b>" in report
    assert stages == [ModelStages.PRODUCTION] and summary["promotion"]["promoted"] is True
    assert list(summary["policies"]) == ["base", "trained"] and "trained_vs_production" not in summary["paired"]


@pytest.mark.parametrize(("step", "compared"), [(3, True), (0, False)])
def test_a_policy_without_a_step_of_grpo_is_not_compared_with_itself(
    step: int, compared: bool, stages: list[ModelStages]
) -> None:
    predictions = [row for policy in ("base", "warm_start", "trained") for row in answers(policy, 3)]
    summary, report = module.compute_metrics.entrypoint(EvaluationConfig(), predictions, evaluated(step=step))
    assert ("trained_vs_warm_start" in summary["paired"]) is ("GRPO added" in report) is compared
    assert "trained_vs_base" in summary["paired"]


def test_a_worse_version_leaves_the_old_one_where_it_is(stages: list[ModelStages]) -> None:
    summary, report = close(3, 12)
    assert stages == [] and summary["promotion"]["reason"].startswith(
        "worse: of 12 questions 0 only by this version and 9"
    )
    assert summary["paired"]["trained_vs_production"]["b_only"] == 9
    assert summary["policies"]["production"]["accuracy"] == 1.0
    assert "<b>trained</b> against <b>production</b>" in report


def test_a_version_that_is_not_worse_takes_its_place(stages: list[ModelStages]) -> None:
    summary, _ = close(10, 12)
    assert stages == [ModelStages.PRODUCTION] and summary["promotion"]["reason"].startswith("not worse")


def test_a_version_that_went_to_production_meanwhile_is_not_replaced(
    stages: list[ModelStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_production(name: str, checkpoint: str) -> None:
        version = SimpleNamespace(name=name, get_artifact=lambda _: SimpleNamespace(id=checkpoint))
        monkeypatch.setattr(module, "production_version", lambda model: version)

    def close_against(compared_with: str, production: list[Prediction] | None) -> dict[str, Any]:
        predictions = answers("base", 0) + answers("trained", 4)
        config, step = EvaluationConfig(), module.compute_metrics.entrypoint
        summary, page = step(config, predictions, evaluated(), production, compared_with=compared_with)
        assert summary["promotion"]["reason"] in page
        return summary["promotion"]

    in_production("r2", "two")
    for compared_with, production in (("", None), ("one", answers(PRODUCTION, 4))):
        refused = close_against(compared_with, production)
        assert not refused["promoted"] and not stages
        assert refused["reason"].startswith("r2 went to production during this evaluation: evaluate again")
    assert close_against("two", answers(PRODUCTION, 4))["promoted"] and len(stages) == 1
    in_production("r1", "another step of this version")
    assert close_against("", None)["promoted"] and len(stages) == 2
    monkeypatch.setattr(module, "production_version", lambda model: None)
    assert close_against("one", answers(PRODUCTION, 4))["promoted"], "what it was compared with was withdrawn"


def test_nothing_goes_to_production_without_a_page(stages: list[ModelStages], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "evaluation_html", fails)
    with pytest.raises(OSError):
        close(12, None)
    assert not stages


def test_an_alert_holds_a_version_back_until_somebody_accepts_it(stages: list[ModelStages]) -> None:
    refused = close(12, None, alerts=("length_drift", "reward_jump"), accepted_alerts=("length_drift",))[0]["promotion"]
    assert not stages and not refused["promoted"]
    assert "unresolved alerts of the training: reward_jump;" in refused["reason"]
    assert "--set accepted_alerts=[length_drift,reward_jump]" in refused["reason"]
    close(12, None, alerts=("reward_jump",), accepted_alerts=("reward_jump",))
    assert stages == [ModelStages.PRODUCTION]


def test_a_version_in_production_that_could_be_asked_nothing_is_not_replaced(stages: list[ModelStages]) -> None:
    predictions = answers("base", 0) + answers("trained", 3)
    step, arguments = module.compute_metrics.entrypoint, (EvaluationConfig(), predictions, evaluated(), [])
    promotion = step(*arguments, compared_with="of the version in production")[0]["promotion"]
    assert not stages and promotion["reason"].startswith("no question was answered by both this version and the one in")


def test_samples_are_paid_for_too() -> None:
    paid = {"cost": 0.5, "judge_cost": 0.25, "judge_tokens": 100}
    rows = [row.model_copy(update=paid) for row in answers("trained", 2, n=4)]
    sampled = [row.model_copy(update={"sample": n}) for n in (1, 2) for row in rows]
    row = module.summarize([*rows, *sampled, *answers("base", 0, n=4)])["policies"]["trained"]
    assert (row["cost"], row["judge_cost"], row["judge_tokens"]) == (6.0, 3.0, 1200)
    assert (row["n"], row["samples"], row["accuracy"]) == (4, 8, 0.5)
    assert module.summarize(answers("trained", 2))["policies"]["trained"]["cost"] is None


def test_without_a_version_in_production_there_is_no_comparison(stages: list[ModelStages]) -> None:
    # A scheduled run asks whatever is in production, and has no answers when nothing is.
    predictions = answers("base", 0) + answers("trained", 3)
    module.compute_metrics.entrypoint(EvaluationConfig(), predictions, evaluated(), [])
    assert stages == [ModelStages.PRODUCTION]


def test_limits_come_from_the_configuration(stages: list[ModelStages]) -> None:
    assert not close(6, None, promotion_floor=0.5)[0]["promotion"]["promoted"]
    assert not close(6, None, min_gain=0.6)[0]["promotion"]["promoted"]
    assert not close(10, 11, promotion_significance=1.0)[0]["promotion"]["promoted"]
    assert stages == []


def test_only_the_checkpoint_of_a_version_takes_it_to_production(
    stages: list[ModelStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = module.get_step_context().model
    linked: list[object] = []
    monkeypatch.setattr(module, "link_artifact_to_model", lambda artifact, model: linked.append(artifact))
    other = SimpleNamespace(run_metadata={"checksum": "of another step", "step": 6})
    monkeypatch.setattr(model, "get_artifact", lambda name: other)
    promotion = close(12, None)[0]["promotion"]
    assert not stages and not promotion["promoted"] and not linked
    logged: dict[str, Any] = {}
    monkeypatch.setattr(module, "log_metadata", lambda metadata, **_: logged.update(metadata))
    close(3, None)
    assert not logged, "these are not the figures of the version"
    assert "not the one that version r1 stands for (step 6)" in promotion["reason"]
    monkeypatch.setattr(model, "get_artifact", lambda name: None)
    assert close(12, None)[0]["promotion"]["promoted"]
    assert stages == [ModelStages.PRODUCTION] and linked == ["the evaluated artifact"]


def test_an_evaluation_with_many_errors_has_no_result(
    stages: list[ModelStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, Any] = {}
    monkeypatch.setattr(module, "log_metadata", lambda metadata, **_: logged.update(metadata))
    failed = [p.model_copy(update={"correct": None, "error": "TimeoutError"}) for p in answers("trained", 0)]
    predictions = [*answers("base", 1), *answers("trained", 12)[:3], *failed[3:]]
    module.compute_metrics.entrypoint(EvaluationConfig(), predictions, evaluated(), None)
    assert logged["evaluation"] == {"n": 12, "base": 1 / 12} and not stages


def test_samples_that_mostly_failed_have_no_pass_at_k_and_it_is_said(
    stages: list[ModelStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module, "say", lambda sentence, alarm=False: said.append(sentence) if alarm else None)
    right = [p.model_copy(update={"sample": n}) for n in (1, 2, 3) for p in answers("trained", 2, n=2)]
    failed = [p.model_copy(update={"correct": None, "error": "TimeoutError"}) for p in right]
    predictions = [*answers("base", 0), *answers("trained", 12), *right, *failed]
    summary, _ = module.compute_metrics.entrypoint(EvaluationConfig(), predictions, evaluated(), None)
    row = summary["policies"]["trained"]
    assert "pass_at" not in row and row["sample_errors"] == 6 and row["comparable"] and row["errors"] == 0
    assert said == ["trained: 6 of 12 samples ended in an error: no pass@k"]
    kept = module.summarize([*answers("trained", 12), *right])["policies"]["trained"]
    assert kept["pass_at"]["1"] == 1.0 and kept["sample_errors"] == 0
