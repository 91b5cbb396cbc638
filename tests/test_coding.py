"""The coding task through the front door: bad input before anything is spent, and a tiny run with the real sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkout import Checkout, settings

CODING = ("--set", "task=coding")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "project")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (settings(sandbox_url="http://127.0.0.1:9"), "no sandbox service answers there"),
        (settings(max_context_tokens=200), "max_context_tokens=200 is too small"),
        (settings(coding_reward="nothing"), "coding_reward=nothing: expected package.module:name"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_spent(checkout: Checkout, words: list[str], message: str) -> None:
    done = checkout.run("--pipeline", "train", *CODING, *words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (checkout.folder / "outputs").exists()


@pytest.mark.slow
def test_training_and_evaluation_of_the_coding_agent(checkout: Checkout, real_model_path: Path) -> None:
    words = [
        *CODING,
        *settings(demonstrations=4, max_steps=1, groups_per_step=1, rollouts_per_group=2, validation_questions=2),
        *settings(dataset_size=12, coding_test_size=3, max_tokens=48),
    ]
    planned = checkout.run("--pipeline", "train", *words, "--dry-run")
    assert planned.returncode == 0 and "12 bugs to train on, 3 held out" in planned.stdout, planned.stderr
    assert "bubblewrap" in planned.stdout and not (checkout.folder / "outputs").exists()
    done = checkout.run("--pipeline", "eval", *words, "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert summary["baselines"]["oracle"]["accuracy"] == 1.0 and summary["baselines"]["do_nothing"]["accuracy"] == 0.0
    assert {"base", "warm_start", "trained"} == set(summary["policies"])
    assert all(row["errors"] == 0 for row in summary["policies"].values())
    report = next((checkout.folder / "outputs" / "reports").glob("c*.html")).read_text()
    assert "hidden checks pass" in report and "fix(" in report
