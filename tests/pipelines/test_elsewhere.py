"""What is checked on the machine from which a run is submitted to a cluster, and what is left to the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.schema import Config, load_config
from environment.errors import BadInput as BadQuestion
from pipelines.planning import run_plan
from pipelines.runs import require_baseline, require_training
from training.errors import BadInput

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
    require_baseline(config)
    with pytest.raises(BadInput, match="OPENAI_API_KEY"):
        require_training(here(config))
    with pytest.raises(BadQuestion, match="baseline_model=openai/gpt-4.1 needs OPENAI_API_KEY"):
        require_baseline(here(config))
    with pytest.raises(BadInput, match="names no provider"):
        require_training(load_config(FILE, ["ruler_model=nobody"]))


def test_a_plan_for_a_cluster_says_nothing_of_this_machines_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(FILE, SYNTHETIC)
    run_plan(config)
    told = capsys.readouterr().out
    assert "checked in the pod that trains" in told and "CUDA" not in told and "rollouts       at most 160" in told
    with pytest.raises(BadInput):
        run_plan(here(config))
    assert "CUDA GPU" in capsys.readouterr().out
