"""The front door, as a user drives it: the whole way once with the real model."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.checkout import SMALL_COMPANY, Checkout, settings
from tests.ports import free_port

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


def test_tests_that_are_watched_for_hanging_have_no_time_limit(request: pytest.FixtureRequest) -> None:
    limit = request.node.get_closest_marker("timeout")
    assert limit is not None and limit.args == (0,)
