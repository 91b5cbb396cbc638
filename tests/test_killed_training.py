"""Kills in the middle of a training, by `run.py` with a tiny model: it goes on, and others continue from its adapter.

A file of its own, so that a worker can run it next to `test_end_to_end.py`.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import SMALL_COMPANY, Checkout, settings
from tests.standstill import guarded

pytestmark = pytest.mark.service


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "project")


def manifests(checkout: Checkout) -> dict[str, Any]:
    """Of the trained checkpoints, by the run's name."""
    found = [json.loads(file.read_text()) for file in (checkout.folder / "zenml").rglob("manifest.json")]
    return {manifest["name"]: manifest for manifest in found if not manifest["name"].endswith("-warm-start")}


def test_a_killed_training_goes_on_and_others_continue_from_its_adapter(checkout: Checkout, tiny_base: Path) -> None:
    base = shutil.copytree(tiny_base, checkout.folder / "base")
    prompts = checkout.folder / "own_prompts.py"
    prompts.write_text("def brief():\n    return 'Search first.'\n")
    words = [
        "--pipeline",
        "train",
        *SMALL_COMPANY,
        *settings(
            base_model=base,
            demonstrations=4,
            max_steps=12,
            decisions="[]",
            groups_per_step=1,
            max_extra_groups=0,
            rollouts_per_group=2,
        ),
        *settings(
            max_tokens=24, lora_layers=2, max_context=8192, experiment="first", prompt_function="own_prompts:brief"
        ),
        *settings(validate_every=0),
    ]
    killed = checkout.start(*words)
    try:
        with guarded(killed):
            while len(checkout.history()) < 3:
                assert killed.poll() is None, killed.communicate()[0]
                time.sleep(0.02)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    before = checkout.history()
    history_file = next((checkout.folder / "outputs").rglob("training_history.jsonl"))
    with history_file.open("a") as torn:
        torn.write('{"step": 99, "pha')  # as if the kill had come in the middle of a line

    left = history_file.read_bytes()

    refused = checkout.run(
        "--pipeline",
        "train",
        "--resume",
        "first",
        *settings(max_steps=13, synthetic_train_inboxes=2),
        "--set",
        "seed=0",
    )
    assert refused.returncode == 2 and history_file.read_bytes() == left, refused.stdout + refused.stderr
    [line] = refused.stderr.splitlines()
    assert "other settings: synthetic_train_inboxes 1 -> 2, max_steps 12 -> 13: resume" in line
    assert line.endswith("--set experiment=first-2 instead of --resume")
    early = checkout.run(*words, "--from", "first", *settings(experiment="second"))
    assert early.returncode == 2 and history_file.read_bytes() == left, early.stdout + early.stderr
    assert (
        "run first has no checkpoint in this ZenML store: if it is unfinished, resume it with --resume first"
        in early.stderr
    )

    prompts.unlink()
    # The shell's own way to ignore SIGINT needs a process that starts by itself.
    for number, rows, start in ((signal.SIGTERM, 5, checkout.start), (signal.SIGINT, 7, checkout.start_alone)):
        stopped_run = start("--pipeline", "train", "--resume", "first")
        try:
            with guarded(stopped_run):
                while history_file.read_bytes().count(b"\n") < rows:
                    assert stopped_run.poll() is None, stopped_run.communicate()[0]
                    time.sleep(0.02)
                stopped_run.send_signal(number)
                output, _ = stopped_run.communicate()
        finally:
            stopped_run.kill()
        assert stopped_run.returncode == 130 and "Traceback" not in output, output
        assert output.splitlines()[-1] == "stopped; the same command resumes after the last finished step"
    stopped = checkout.history()
    assert stopped[: len(before)] == before

    resumed = checkout.run("--pipeline", "train", "--resume", "first")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    after = checkout.history()
    assert [row["step"] for row in after] == list(range(13))
    assert after[: len(stopped)] == stopped
    assert f"step {len(stopped):3d}/12" in resumed.stdout and f"step {len(stopped) - 1:3d}/12" not in resumed.stdout

    [manifest, _] = [json.loads(file.read_text()) for file in (checkout.folder / "zenml").rglob("manifest.json")]
    assert manifest["config"]["system_prompt"] == "Search first."

    prompts.write_text("def brief():\n    return 'Search ' + 'first.'\n")
    same_command = checkout.run(*words)
    assert same_command.returncode == 0 and "this run is finished, reused" in same_command.stdout, same_command.stderr
    finished = checkout.run("--pipeline", "train", "--resume", "first")
    assert finished.returncode == 0 and "this run is finished, reused" in finished.stdout, finished.stderr

    compared = checkout.run("--pipeline", "compare", "first")
    assert compared.returncode == 0 and "max_steps=12 reached" in compared.stdout, compared.stdout + compared.stderr
    assert "seed 0, data_seed 42" in compared.stdout
    assert len(list((checkout.folder / "outputs" / "reports").glob("compare-*.html"))) == 1
    unknown = checkout.run("--pipeline", "compare", "second")
    assert unknown.returncode == 2 and "there is no run 'second'; known runs: first (r" in unknown.stderr

    # New runs, under other settings, that begin with the adapter of this one: by its name, and by the checkpoint's folder.
    [before] = manifests(checkout).values()
    words += settings(max_steps=1, max_turns=1)
    continued = checkout.run(*words, "--from", "first", *settings(experiment="second", temperature=0.9))
    assert continued.returncode == 0 and "warm start on" not in continued.stdout, continued.stdout + continued.stderr
    after = manifests(checkout)
    [second] = [manifest for name, manifest in after.items() if name != before["name"]]
    assert second["config"]["continue_from"] and second["config"]["temperature"] == 0.9
    run_folder = next((checkout.folder / "outputs" / "runs").glob(f"{second['name']}-*"))
    [history] = run_folder.rglob("training_history.jsonl")
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["continued", "grpo"]

    [folder] = [
        file.parent
        for file in (checkout.folder / "zenml").rglob("manifest.json")
        if json.loads(file.read_text())["name"] == second["name"]
    ]
    from_folder = checkout.run(*words, "--from", str(folder), *settings(experiment="third"))
    assert from_folder.returncode == 0, from_folder.stdout + from_folder.stderr
    [third] = [manifest for name, manifest in manifests(checkout).items() if name not in after]
    assert third["config"]["continue_from"] and third["config"]["temperature"] == before["config"]["temperature"]

    # The same command on another tokenizer is another run, and the old one is not continued.
    tokenizer = base / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    refused = checkout.run("--pipeline", "train", "--resume", "first")
    assert refused.returncode == 2 and "began on other files of base (tokenizer" in refused.stderr, refused.stderr
    other = checkout.run(*words, "--from", str(folder), *settings(experiment="third"))
    assert other.returncode == 0 and "reused" not in other.stdout.split("training run")[1], other.stdout + other.stderr
    assert f"run {third['name']} of" in other.stdout and "began with other files of the base model" in other.stdout
