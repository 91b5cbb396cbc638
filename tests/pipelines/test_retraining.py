"""What a schedule runs, run once and again: a tiny model on a local stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from zenml import Model
from zenml.client import Client
from zenml.models import PipelineRunResponse

from configs.schema import DataConfig, EvaluationConfig, TrainingConfig
from pipelines.retraining import retraining_pipeline
from steps.artifact_names import MODEL_NAME
from steps.data import create_database
from steps.training import training_run
from tests.training.backends.torch.tiny_models import save_tiny_model

pytestmark = pytest.mark.service


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny random model, and folders of the test's own for what steps write."""
    monkeypatch.setattr(create_database, "DATA", tmp_path / "data")
    monkeypatch.setattr(training_run, "RUNS", tmp_path / "runs")
    return save_tiny_model(tmp_path / "base", "llama", context=8192)


def retrain(base: Path, continue_from: str | None = None, **data: int) -> PipelineRunResponse:
    company = {"synthetic_train_inboxes": 1, "synthetic_test_inboxes": 1}
    started = retraining_pipeline.with_options(model=Model(name=MODEL_NAME))(
        data=DataConfig(**company, **{"synthetic_questions_per_inbox": 24} | data),
        training=TrainingConfig(
            base_model=str(base),
            continue_from=continue_from,
            demonstrations=2,
            max_steps=1,
            groups_per_step=1,
            max_extra_groups=0,
            rollouts_per_group=2,
            validation_questions=2,
            max_tokens=16,
            lora_layers=2,
            max_context=8192,
        ),
        evaluation=EvaluationConfig(eval_limit=2),
    )
    return Client().get_pipeline_run(started.id)


def test_data_is_reused_but_training_is_not_and_the_gate_gives_its_reason(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = retrain(base, continue_from="production"), retrain(base)
    assert second.model_version is not None
    in_production = second.model_version.get_artifact("checkpoint")
    second.model_version.set_stage("production", force=True)
    try:
        other = retrain(base, continue_from="production", synthetic_questions_per_inbox=20)
    finally:
        second.model_version.set_stage("archived", force=True)
    started_from = [run.steps["train_agent"].outputs["checkpoint"][0].load().manifest for run in (first, other)]
    assert [manifest.config["continue_from"] for manifest in started_from] == [None, str(in_production.id)]
    [history] = [run.steps["train_agent"].outputs["training_history"][0].load() for run in (other,)]
    assert history[0]["phase"] == "continued"
    states = [{name: step.status.value for name, step in run.steps.items()} for run in (first, second, other)]
    assert set(states[0].values()) == {"completed"} and len(states[1]) == 9
    for step in ("create_database", "load_scenarios"):
        assert [state[step] for state in states] == ["completed", "cached", "completed"]
    assert [state["train_agent"] for state in states] == ["completed"] * 3
    versions = [run.model_version for run in (first, second, other)]
    assert len({version.id for version in versions if version}) == 3
    for run, version in zip((first, second, other), versions, strict=True):
        assert version is not None
        assert version.get_artifact("checkpoint").load().manifest.name == version.name
        summary = run.steps["compute_metrics"].outputs["metrics"][0].load()
        # Random weights know no answer, so the floor speaks.
        assert summary["promotion"] == {"promoted": False, "reason": "0.0% correct is not above promotion_floor=0.0"}
    assert capsys.readouterr().out.count("not promoted to production: 0.0% correct") == 3
