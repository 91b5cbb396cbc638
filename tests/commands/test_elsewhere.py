"""Checks before submitting a run to a cluster, and checks that are left to the cluster."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

import run
from commands import agent_runs, evaluate, stack
from commands.data import DataRun
from commands.dry_run import run_plan
from commands.evaluate import require_evaluation
from commands.train import require_training
from configs.config import Config
from configs.loading import load_config
from tests.checkout import settings
from training.errors import BadInput

pytestmark = pytest.mark.service

FILE = Path(__file__).parents[2] / "configs" / "training_k8s.yaml"
SYNTHETIC = ["emails=synthetic", "train_questions=null"]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's key is a secret of the cluster."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def here(config: Config) -> Config:
    """The same training on this machine."""
    return config.model_copy(update={"step_settings": {}})


def test_a_key_that_the_pods_have_is_not_needed_here() -> None:
    config = load_config(FILE, ["baseline_model=openai/gpt-4.1"])
    require_training(config)
    require_evaluation(config)
    with pytest.raises(BadInput, match="OPENAI_API_KEY"):
        require_training(here(config))
    with pytest.raises(BadInput, match="baseline_model=openai/gpt-4.1 needs OPENAI_API_KEY"):
        require_evaluation(here(load_config(FILE, ["baseline_model=openai/gpt-4.1", "judge=exact"])))
    with pytest.raises(BadInput, match="names no provider"):
        require_training(load_config(FILE, ["ruler_model=nobody"]))


class Began(Exception):
    """Something was prepared or submitted."""


@pytest.fixture
def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object, **__: object) -> None:
        raise Began

    data = DataRun(database=UUID(int=1), scenarios=UUID(int=2))
    trained = evaluate.TrainedRun(version="r1", data=data, checkpoint=UUID(int=3), warm_start=None)
    monkeypatch.setattr(stack, "require_cluster", lambda *_: None)
    monkeypatch.setattr(evaluate, "find_trained", lambda *_: trained)
    monkeypatch.setattr(agent_runs, "other_in_production", lambda *_: None)
    monkeypatch.setattr(agent_runs, "run_pipeline", begin)
    monkeypatch.setattr("commands.data.run_data", begin)


@pytest.mark.usefixtures("nothing_begins")
def test_the_judge_of_an_evaluation_elsewhere_needs_no_key_here() -> None:
    """The orchestrator is local; only run_inference has a step operator."""
    words = settings(judge="llm", step_settings="{run_inference: {step_operator: pods}}")
    with pytest.raises(Began):
        run.main(["--pipeline", "eval", *words])


@pytest.mark.usefixtures("nothing_begins")
def test_the_judge_of_an_evaluation_here_is_missed_before_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    words = settings(judge="llm", step_settings="{train_agent: {step_operator: pods}}")
    assert run.main(["--pipeline", "all", *words]) == 2
    recorded = capsys.readouterr().err
    assert "judge=llm asks openai/gpt-4.1, which needs OPENAI_API_KEY" in recorded and recorded.count("\n") == 1


def test_a_plan_for_a_cluster_ignores_this_machines_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(FILE, SYNTHETIC)
    run_plan(config)
    recorded = capsys.readouterr().out
    assert (
        "checked in the pod that trains" in recorded
        and "CUDA" not in recorded
        and "rollouts       at most 160" in recorded
    )
    with pytest.raises(BadInput):
        run_plan(here(config))
    assert "CUDA GPU" in capsys.readouterr().out
