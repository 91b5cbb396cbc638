"""The default profile, from data to evaluation with the real model: its accuracy must not fall below a floor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checkout import Checkout

FLOOR = 0.78
"""Above the warm starts of the default profile (docs/results.md, three seeds), and below the 95% intervals of its trained
policies, so that equal code passes with another seed or machine."""


@pytest.mark.nightly
@pytest.mark.slow
def test_the_default_profile_reaches_its_accuracy_floor(tmp_path: Path) -> None:
    checkout = Checkout.create(tmp_path / "project")
    done = checkout.run("--pipeline", "all", "--config", "configs/training_cpu.yaml", "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr

    summary = json.loads((checkout.folder / "summary.json").read_text())
    print(done.stdout)  # shown with -rP, for the log of the night
    assert summary["n"] == 200
    trained, base = summary["policies"]["trained"], summary["policies"]["base"]
    assert trained["errors"] == 0 and summary["baselines"]["oracle"]["accuracy"] == 1.0
    assert trained["accuracy"] >= FLOOR, f"{trained['accuracy']:.1%} of {summary['n']} questions"
    assert trained["accuracy"] > base["accuracy"]
