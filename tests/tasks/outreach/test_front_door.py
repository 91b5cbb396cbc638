"""`--pipeline learn-loop`: a whole run with a tiny model, and what bad input is answered with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import run
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from tests.checkout import Checkout, settings
from tests.tiny_checkpoint import tiny_checkpoint
from training.checkpoint import MANIFEST
from training.record.experiment import Experiment
from training.record.history import HISTORY_FILE

REWARDS = """
from itertools import count

numbers = count()


def counted(trajectory):
    return next(numbers) % 2
"""
"""A reward with spread among the e-mails of a model that cannot write any."""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (settings(graph="nowhere.jsonl", prospects="nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (settings(graph="nowhere.jsonl"), "needs prospects as well"),
        (settings(webhook_url="ftp://example.com"), "expected http"),
        (settings(validation_metric="accuracy"), "use validation_metric=reward"),
        (settings(experiment="../outside"), "experiment='../outside'"),
        (settings(max_steps_off_policy=1), "set it to 0"),
        (settings(max_neighbours=0), "allowed: >= 1"),
        (settings(train_prospects=2), "validation_questions=2 leaves nothing to train on"),
    ],
)
def test_bad_input_is_one_line(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--pipeline", "learn-loop", *words]) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1


def test_a_scenario_that_names_no_node_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [scenario.model_dump(mode="json") for scenario in synthetic_scenarios(0, 2, 2)]
    lines[0]["seeds"] = ["p7"]
    (tmp_path / "prospects.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "graph.jsonl").write_text(synthetic_graph(0).to_lines())
    words = settings(graph=tmp_path / "graph.jsonl", prospects=tmp_path / "prospects.jsonl")
    assert run.main(["--pipeline", "learn-loop", *words]) == 2
    assert "prospects.jsonl, line 1: scenario train-1 starts from node 'p7'" in capsys.readouterr().err


def test_the_task_is_the_same_pipeline_by_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    outreach = ["--task", "outreach"]
    assert run.main(["--pipeline", "train", *outreach, "--dry-run", *settings(train_prospects=5)]) == 0
    assert "5 train and 18 held-out prospects" in capsys.readouterr().out
    for words in (["--pipeline", "eval", *outreach], ["--pipeline", "train", *settings(task="outreach")]):
        assert run.main(words) == 2
        assert "task=outreach: use --pipeline learn-loop" in capsys.readouterr().err


def test_a_loop_starts_only_from_a_policy_that_writes_emails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = tiny_checkpoint(tmp_path, seed=1).path
    assert run.main(["--pipeline", "learn-loop", "--dry-run", "--from", str(start)]) == 2
    assert "the checkpoint was trained with task=email-search" in capsys.readouterr().err
    start = tiny_checkpoint(tmp_path, seed=2, task="outreach").path
    words = ["--pipeline", "learn-loop", "--dry-run", "--from", str(start)]
    assert run.main([*words, *settings(lora_rank=2, lora_layers=1)]) == 2
    assert "lora_layers=1 does not fit the checkpoint" in capsys.readouterr().err
    assert run.main([*words, *settings(lora_rank=2)]) == 0
    assert "warm start     0 demonstrations" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.service
def test_a_run_leaves_its_results_and_the_same_command_reuses_them(tiny_base: Path, tmp_path: Path) -> None:
    checkout = Checkout.create(tmp_path)
    small = settings(
        base_model=tiny_base,
        max_steps=1,
        groups_per_step=2,
        rollouts_per_group=2,
        demonstrations=4,
        validation_questions=2,
    )
    small += settings(
        train_prospects=6, test_prospects=2, max_tokens=16, max_turns=2, max_context=8192, experiment="tiny"
    )
    words = ["--pipeline", "learn-loop", "--config", "configs/learn_loop.yaml", *small]
    done = checkout.run(*words)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "outputs" / "learn_loop" / "tiny"
    evaluation = json.loads((folder / "evaluation.json").read_text())
    assert list(evaluation["rows"]) == ["iteration 0", "scores only", "policy only", "policy and scores"]
    assert "simulated" in (folder / "page.html").read_text()
    assert json.loads((folder / "state.json").read_text())["state"] == "finished"
    assert [file.name for file in sorted((folder / "iterations").iterdir())] == ["0000", "0001"]
    written = (folder / "iterations" / "0001" / "emails.json").read_text()
    again = checkout.run(*words)
    assert again.returncode == 0 and "scores only" in again.stdout
    assert (folder / "iterations" / "0001" / "emails.json").read_text() == written
    experiment = Experiment.load(folder)
    assert (experiment.task, experiment.seeds) == ("outreach", {"seed": 0, "graph_seed": 0})
    store = checkout.environment["ZENML_CONFIG_PATH"]
    start = next(file.parent for file in Path(store).rglob(MANIFEST) if json.loads(file.read_text())["step"] == 1)
    (checkout.folder / "rewards.py").write_text(REWARDS)
    words_of_own = [*words, *settings(scoring="custom", reward_function="rewards:counted", experiment="second")]
    continued = checkout.run(*words_of_own, "--from", str(start))
    assert continued.returncode == 0, continued.stderr
    rows = [json.loads(row) for row in next(folder.with_name("second").rglob(HISTORY_FILE)).read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["continued", "grpo"]
    exported = checkout.run(
        "--pipeline", "export", "--task", "outreach", "--checkpoint", str(start), "--to", "exported"
    )
    assert exported.returncode == 0, exported.stderr
    assert "Outreach agent" in (checkout.folder / "exported" / "README.md").read_text()
    other = checkout.run(*words, "--set", "seed=5")
    assert other.returncode == 2 and "began with another seed" in other.stderr
