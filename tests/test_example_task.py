"""A task outside `tasks/`, the one of `examples/`: refused, trained, evaluated, continued and resumed like the others."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from examples.larger_number import PLUGIN, Settings
from tests import fork_server
from tests.checkout import ROOT, Checkout, settings
from tests.front_door import FrontDoor
from tests.ports import free_port
from tests.serving.deployed import ask
from tests.serving.service_client import waited
from tests.standstill import guarded

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
        ([*TASK, "--set", "task_settings={least: 1}"], "task_settings.least: unknown key; there are most, pairs"),
        ([*TASK, "--set", "decisions=[call]"], "task larger-number has no decision 'call': it has none"),
        (["--task", "coding", "--set", "task_settings={most: 9}"], "task_settings: no effect on task=coding"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    assert message in FrontDoor(tmp_path, monkeypatch).refuses("--pipeline", "train", *words)


def test_most_is_the_largest_number() -> None:
    pairs = PLUGIN.scenarios(Settings(most=9, pairs=200))
    assert {number for pair in pairs for number in pair.numbers} == set(range(10))


def test_a_plug_in_without_a_title_is_refused_before_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("examples.larger_number.Plugin.title")
    said = FrontDoor(tmp_path, monkeypatch).refuses("--pipeline", "train", *TASK, "--dry-run")
    assert "task=examples.larger_number:PLUGIN: PLUGIN in examples.larger_number has no title" in said


def test_a_task_that_users_cannot_ask_is_not_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = FrontDoor(tmp_path, monkeypatch).refuses("--pipeline", "deploy", "--task", "coding")
    assert "task coding answers no questions of users" in said


def test_the_whole_of_it(tmp_path: Path, tiny_base: Path) -> None:
    checkout = Checkout.create(tmp_path / "project")
    # A service has a process of its own, which imports from its own checkout.
    shutil.copytree(ROOT / "examples", checkout.folder / "examples")
    words = [
        *TASK,
        *settings(base_model=tiny_base, demonstrations=4, max_steps=6, groups_per_step=1, rollouts_per_group=2),
        *settings(validate_every=0, max_tokens=8, lora_layers=2, task_settings="{most: 20, pairs: 12}"),
    ]
    first = [*words, "--set", "experiment=first"]
    killed_when(checkout.history, checkout.start("--pipeline", "train", *first))
    before = checkout.history()
    resumed = checkout.run("--pipeline", "train", "--resume", "first")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert len(checkout.history()) == 7 and checkout.history()[: len(before)] == before
    evaluations = checkout.folder / "outputs" / "evaluations"
    killed_when(lambda: [*evaluations.glob("*.jsonl")], checkout.start("--pipeline", "eval", *first))
    done = checkout.run("--pipeline", "eval", *first, "--summary", "summary.json")
    assert done.returncode == 0 and "answers of the interrupted evaluation are kept" in done.stdout, (
        done.stdout + done.stderr
    )
    assert not list(evaluations.iterdir()), "a finished evaluation needs no journal"
    assert "6 pairs to train on, 6 held out" in done.stdout and "this run is finished, reused" in done.stdout
    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert {name: row["n"] for name, row in summary["policies"].items()} == {"base": 6, "warm_start": 6, "trained": 6}
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
    answers_over_http(checkout)


def killed_when(reached: Callable[[], Sequence[Any]], process: fork_server.Started) -> None:
    """Kill a command as soon as it has reached something."""
    try:
        with guarded(process):
            while not reached():
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def answers_over_http(checkout: Checkout) -> None:
    (checkout.folder / "keys.yaml").write_text("- {name: ann, key: sixteen characters}\n")
    words = (*TASK, "--unpromoted", "--name", "numbers", *settings(access_keys="keys.yaml", port=free_port()))
    done = checkout.run("--pipeline", "deploy", *words)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        url = re.search(r"answers at (http://\S+)/invoke", done.stdout)[1]  # type: ignore[index]
        assert ask(url, question="3 or 8?")[0] == 401
        reply: Any
        status, reply = ask(url, "sixteen characters", question="Which is more, 3 or 8?")
        assert status == 200, reply
        assert set(reply) == {"question", "answer", "transcript", "execution_time", "metadata"}
        asked, said = reply["transcript"]
        assert asked["content"] == "Which is larger, 3 or 8? Reply with the number."
        assert (said["content"] or "").strip() == reply["answer"]
        about = reply["metadata"]
        assert about["episode"].keys() >= {"outcome", "turns", "seconds"} and about["episode"]["turns"] == 1
        assert about["model"]["mails"] is None and about["parameters_used"] == {"question": "Which is more, 3 or 8?"}
        with urlopen(Request(f"{url}/metrics", headers={"Authorization": "Bearer sixteen characters"})) as metrics:
            assert re.search(r"sampled_tokens_total [1-9]", metrics.read().decode())
        for wrong, line in (
            ({"question": "Which is more?"}, "parameters.question: has 0 numbers: write two"),
            ({"question": " "}, "parameters.question: is empty"),
            ({"question": "3 or 8?", "inbox_address": "a@b.c"}, "parameters.inbox_address: Extra inputs"),
        ):
            status, reply = ask(url, "sixteen characters", **wrong)
            assert status == 422 and line in reply["error"], reply
        with closing(sqlite3.connect(next((checkout.folder / "zenml").rglob("zenml.db")))) as store:
            query = "SELECT status FROM pipeline_run WHERE name = ?"
            waited(lambda: store.execute(query, (about["run_name"],)).fetchall() == [("completed",)])
    finally:
        stopped = fork_server.start(
            ["deployment", "delete", "numbers", "--yes"],
            folder=checkout.folder,
            environment=checkout.environment,
            program="zenml",
        )
        stopped.communicate()
