"""The front door, as a user drives it: the whole way once with the real model, and a kill in the middle."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.checkout import SMALL_COMPANY, Checkout, settings
from tests.ports import free_port
from tests.standstill import guarded

pytestmark = pytest.mark.service


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "project")


def ask(url: str, **parameters: object) -> tuple[int, dict]:
    body = json.dumps({"parameters": parameters, "timeout": 300}).encode()
    try:
        with urlopen(Request(f"{url}/invoke", body, {"Content-Type": "application/json"}), timeout=600) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.slow
def test_data_training_evaluation_and_service_end_to_end(checkout: Checkout, real_model_path: Path) -> None:
    words = [
        *SMALL_COMPANY,
        *settings(
            synthetic_questions_per_inbox=8,
            demonstrations=4,
            max_steps=1,
            groups_per_step=1,
            max_extra_groups=0,
            rollouts_per_group=2,
            validate_every=1,
            validation_questions=2,
        ),
        *settings(eval_limit=2, max_tokens=64, max_turns=4),
    ]
    # By itself once, as a user starts it: in the order of its own imports.
    done = checkout.run_alone("--pipeline", "all", *words, "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "warm start on 4 demonstrations" in done.stdout and re.search(r"step +1/1 +reward", done.stdout)
    assert "max_steps=1 reached; best checkpoint: step" in done.stdout and "zenml login --local" in done.stdout

    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert summary["n"] == 2
    assert list(summary["policies"]) == ["base", "warm_start", "trained"]
    assert list(summary["baselines"]) == ["search_and_quote", "oracle", "do_nothing"]
    for row in [*summary["policies"].values(), *summary["baselines"].values()]:
        assert {"accuracy", "ci95", "answer_rate", "source_recall", "source_precision", "turns", "seconds"} <= set(row)
        assert row["errors"] == 0, row
    assert summary["baselines"]["oracle"]["accuracy"] == 1.0
    assert summary["baselines"]["do_nothing"]["accuracy"] == 0.0
    reports = sorted(file.name for file in (checkout.folder / "outputs" / "reports").glob("*.html"))
    assert len(reports) == 2 and all(name in done.stdout for name in reports)
    assert reports[1] == f"training-{reports[0]}"

    again = checkout.run("--pipeline", "all", *words)
    assert again.returncode == 0 and again.stdout.count("reused (") == 3, again.stdout + again.stderr

    newest = checkout.run("--pipeline", "eval", "--summary", "again.json", *settings(eval_limit=3))
    assert newest.returncode == 0, newest.stderr  # the newest trained model, on the data that it was trained on

    promoted = any(  # the second evaluation may promote what the first did not: it asks one more question
        "promoted to production" in said and "not promoted to production" not in said
        for said in (done.stdout, newest.stdout)
    )
    if not promoted:
        refused = checkout.run("--pipeline", "deploy", "--name", "one")
        assert refused.returncode == 2 and "no version is in production; the latest is r" in refused.stderr, (
            refused.stderr
        )
    words = [*settings(port=free_port()), *(() if promoted else ("--unpromoted",))]
    deployed = checkout.run("--pipeline", "deploy", "--name", "one", *words)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    try:
        found = re.search(r"http://[^\s/]+", deployed.stdout)
        assert found, deployed.stdout
        prediction = json.loads(next((checkout.folder / "zenml").rglob("values.jsonl")).read_text().splitlines()[1])
        status, answer = ask(
            found[0],
            question="Who leads it?",
            inbox_address=prediction["inbox_address"],
            query_date="2024-06-28",
        )
        assert status == 200 and {"question", "answer", "source_ids", "success"} <= set(answer), answer
        status, answer = ask(found[0], question="Who?", inbox_address="no@body.example", query_date="2024-06-28")
        assert status == 404 and answer["success"] is False
    finally:
        zenml = [str(Path(checkout.command()[0]).with_name("zenml")), "deployment", "deprovision", "one", "-y"]
        os.spawnve(os.P_WAIT, zenml[0], zenml, checkout.environment)


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


def test_tests_that_are_watched_for_hanging_have_no_time_limit(request: pytest.FixtureRequest) -> None:
    limit = request.node.get_closest_marker("timeout")
    assert limit is not None and limit.args == (0,)
