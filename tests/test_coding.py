"""The coding task through the front door: bad input before anything is spent, and a tiny run with the real sandbox."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import Checkout, settings
from tests.front_door import FrontDoor
from tests.sandbox.docker_daemon import require_bubblewrap

pytestmark = pytest.mark.service

CODING = ("--task", "coding")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "project")


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    return FrontDoor(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (settings(sandbox_url="http://127.0.0.1:9"), "no sandbox service answers there"),
        (settings(max_context_tokens=200), "max_context_tokens=200 is too small"),
        (settings(coding_reward="nothing"), "coding_reward=nothing: expected package.module:name"),
        (
            settings(bugs="nowhere", demonstrations=0),
            "bugs=nowhere: no such folder; give built-in, a folder of parquet files or a Hub id",
        ),
        (
            settings(dataset_size=40, validate_every=1),
            "validation_questions=48 leaves nothing to train on: there are 40 train scenarios",
        ),
        (settings(bugs="own/bugs"), "demonstrations=128: only the built-in bugs have demonstrations"),
        (["--schedule", "0 2 * * *"], "cannot run schedules"),
        (["--from", "first"], "there is no run 'first'"),
        (settings(judge="llm", eval_samples=2), "judge and eval_samples: no effect on task=coding; leave it out"),
        (settings(eval_samples=1, base_grammar="true"), "eval_samples and base_grammar: no effect on task=coding"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_spent(door: FrontDoor, words: list[str], message: str) -> None:
    assert message in door.refuses("--pipeline", "train", *CODING, *words)
    assert not (door.folder / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deploy"], "task coding answers no questions of users: measure it with --pipeline eval, or export it"),
        (["export", "--to", "folder"], "yet: run `python run.py --pipeline train` with the same task first"),
        (["eval", "--checkpoint", "folder"], "checkpoint: folder is neither a folder nor an artifact version"),
    ],
)
def test_what_it_does_not_have_is_refused(door: FrontDoor, words: list[str], message: str) -> None:
    assert message in door.refuses("--pipeline", *words, *CODING)
    assert not (door.folder / "outputs").exists()


def evaluated(
    checkout: Checkout, words: list[str], *, pipeline: str = "eval", before: str = "warm_start"
) -> dict[str, Any]:
    """The summary of training and evaluation with these words, and what the command said."""
    done = checkout.run("--pipeline", pipeline, *words, "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert summary["baselines"]["oracle"]["accuracy"] == 1.0 and summary["baselines"]["do_nothing"]["accuracy"] == 0.0
    assert {"base", before, "trained"} == set(summary["policies"])
    assert all(row["errors"] == 0 for row in summary["policies"].values())
    report = next((checkout.folder / "outputs" / "reports").glob("c*.html")).read_text()
    assert "hidden checks pass" in report and "fix(" in report
    return {**summary, "said": done.stdout}


def test_the_gate_decides_and_a_run_can_be_resumed_and_continued_by_its_own_task(
    checkout: Checkout, tiny_base: Path
) -> None:
    require_bubblewrap()
    words = [
        *CODING,
        *settings(
            base_model=tiny_base,
            demonstrations=2,
            max_steps=1,
            groups_per_step=1,
            rollouts_per_group=2,
            validate_every=0,
        ),
        *settings(
            dataset_size=4, coding_test_size=3, max_tokens=8, lora_layers=2, max_context=4096, max_context_tokens=1000
        ),
        *settings(experiment="first", model_name="repairs", project="bugs-of-ours"),
    ]
    checkout.environment |= {"WANDB_MODE": "offline", "WANDB_CACHE_DIR": str(checkout.folder / "wandb")}
    planned = checkout.run("--pipeline", "train", *words, "--dry-run")
    assert planned.returncode == 0 and "4 bugs to train on, 3 held out" in planned.stdout, planned.stderr
    assert "bubblewrap" in planned.stdout and not (checkout.folder / "outputs").exists()
    summary = evaluated(checkout, words)
    assert (
        summary["promotion"]["promoted"] is False
        and "is not above promotion_floor=0.0" in summary["promotion"]["reason"]
    )
    assert "not promoted to production: 0.0% correct" in summary["said"]
    [tracked] = (checkout.folder / "outputs" / "runs").rglob("*.wandb")
    assert b"bugs-of-ours" in tracked.read_bytes()
    [store] = (checkout.folder / "zenml").rglob("zenml.db")
    with contextlib.closing(sqlite3.connect(store)) as database:
        assert database.execute("SELECT name FROM model").fetchall() == [("repairs",)]
    again = checkout.run("--pipeline", "train", "--resume", "first")
    assert again.returncode == 0 and "this run is finished, reused" in again.stdout, again.stdout + again.stderr
    # An equal adapter on equal bugs would not be asked again.
    others = [*settings(experiment="second", coding_test_size=2), "--from", "first"]
    continued = evaluated(checkout, [*words, *others], pipeline="all", before="start")
    assert continued["paired"]["trained_vs_start"]
    for other, message in (
        (["--resume", "first", "--set", "learning_rate=0.5"], "began with other settings: learning_rate"),
        (["--from", "first"], "run first has task=coding: an agent of task=email-search cannot start from its adapter"),
    ):
        refused = checkout.run("--pipeline", "train", *other)
        assert refused.returncode == 2 and message in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr


@pytest.mark.nightly
def test_training_and_evaluation_of_the_coding_agent_with_the_real_model(
    checkout: Checkout, real_model_path: Path
) -> None:
    require_bubblewrap()
    words = [
        *CODING,
        *settings(demonstrations=4, max_steps=1, groups_per_step=1, rollouts_per_group=2, validation_questions=2),
        *settings(dataset_size=12, coding_test_size=3, max_tokens=48),
    ]
    evaluated(checkout, words)
