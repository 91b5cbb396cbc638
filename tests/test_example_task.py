"""A task outside `tasks/`, the one of `examples/`: refused, trained, evaluated, continued and resumed like the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checkout import Checkout, settings
from tests.front_door import FrontDoor

pytestmark = pytest.mark.service

TASK = ("--task", "examples.larger_number:PLUGIN")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "examples.none:PLUGIN"], "task=examples.none:PLUGIN: examples.none cannot be imported"),
        (["--task", "examples.larger_number:Pair"], "examples.larger_number has no Pair that is a training.plugin"),
        (["--task", "sorting"], "task='sorting'"),
        (
            [*TASK, "--set", "task_settings={most: 1}"],
            "task_settings.most=1: input should be greater than or equal to 9",
        ),
        ([*TASK, "--set", "task_settings={least: 1}"], "task_settings.least"),
        ([*TASK, "--set", "decisions=[call]"], "task larger-number has no decision 'call': it has none"),
        (["--task", "coding", "--set", "task_settings={most: 9}"], "task_settings: no effect on task=coding"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    assert message in FrontDoor(tmp_path, monkeypatch).refuses("--pipeline", "train", *words)


def test_the_whole_of_it(tmp_path: Path, tiny_base: Path) -> None:
    checkout = Checkout.create(tmp_path / "project")
    words = [
        *TASK,
        *settings(base_model=tiny_base, demonstrations=4, max_steps=1, groups_per_step=1, rollouts_per_group=2),
        *settings(validate_every=0, max_tokens=8, lora_layers=2, task_settings="{most: 20, pairs: 12}"),
    ]
    done = checkout.run("--pipeline", "all", *words, "--set", "experiment=first", "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 pairs to train on, 6 held out" in done.stdout
    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert {name: row["n"] for name, row in summary["policies"].items()} == {"base": 6, "warm_start": 6, "trained": 6}
    again = checkout.run("--pipeline", "train", "--resume", "first")
    assert again.returncode == 0 and "this run is finished, reused" in again.stdout, again.stdout + again.stderr
    card = checkout.folder / "exported" / "README.md"
    done = checkout.run("--pipeline", "export", *TASK, "--to", "exported")
    assert done.returncode == 0 and card.exists(), done.stdout + done.stderr
    assert (
        "# Larger number, run l" in card.read_text()
        and "registered as | larger-number-agent, version" in card.read_text()
    )
    other = checkout.run("--pipeline", "export", "--to", "other", "--checkpoint", "checkpoint")
    assert other.returncode == 2 and f"was trained with task={TASK[1]}: add --task" in other.stderr, other.stderr
    changed = checkout.run("--pipeline", "train", "--resume", "first", "--set", "task_settings={most: 30}")
    assert changed.returncode == 2 and "began with other settings: task_settings" in changed.stderr, changed.stderr
    longer = checkout.run("--pipeline", "train", *words, "--set", "experiment=second", "--from", "first")
    assert longer.returncode == 0, longer.stdout + longer.stderr
