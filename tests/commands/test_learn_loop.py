"""Which earlier learn loop a command goes on with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import run
from commands import learn_loop
from commands.learn_loop import learn_loop_config, run_key
from steps import project
from steps.learn_loop.world import model_name, open_task, sources_of, world_of
from steps.project import learn_loop_code, task_code, training_code
from tasks.coding.plugin import PLUGIN
from tasks.outreach.scenarios import Scenario
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from tests.front_door import FrontDoor
from training.errors import BadInput
from training.record.experiment import Experiment

pytestmark = pytest.mark.service


def written(folder: Path, scenarios: list[Scenario]) -> None:
    (folder / "graph.jsonl").write_text(synthetic_graph(0).to_lines())
    (folder / "prospects.jsonl").write_text("".join(f"{scenario.model_dump_json()}\n" for scenario in scenarios))


def test_a_named_loop_goes_on_only_with_the_same_code_files_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, synthetic_scenarios(0, 4, 2))
    files = [f"graph={tmp_path / 'graph.jsonl'}", f"prospects={tmp_path / 'prospects.jsonl'}", "experiment=first"]
    config = learn_loop_config(None, files)
    folder = tmp_path / "first"
    for cache in (True, False):
        learn_loop._require_same_run(folder, config, cache=cache)
    Experiment(
        name="first",
        run="first",
        config=config.model_dump(mode="json"),
        git_revision="abc",
        code=learn_loop_code(),
        sources=sources_of(config),
        base_model="m",
        base_model_checksum="0" * 64,
        created=datetime(2026, 11, 23, tzinfo=UTC),
    ).save(folder)

    def refusal(*words: str) -> str:
        with pytest.raises(BadInput) as caught:
            learn_loop._require_same_run(folder, learn_loop_config(None, [*files, *words]), cache=True)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    learn_loop._require_same_run(folder, config, cache=True)
    with pytest.raises(BadInput, match="--no-cache begins a new learn loop, and first is an earlier one: "):
        learn_loop._require_same_run(folder, config, cache=False)
    begun = Experiment.load(folder)
    begun.model_copy(update={"config": begun.config | {"node_decay": 0.5}}).save(folder)
    said: list[str] = []
    monkeypatch.setattr(learn_loop, "say", said.append)
    learn_loop._require_same_run(folder, config, cache=True)
    learn_loop._say_what_is_fixed(folder)
    assert said == ["learn loop first goes on with values that are fixed now: outreach.node_decay=0.5 (now 0.97)"]
    assert "began with another seed: " in refusal("seed=5")
    written(tmp_path, synthetic_scenarios(0, 4, 3))
    assert "began with another graph and prospects: " in refusal()
    written(tmp_path, synthetic_scenarios(0, 4, 2))
    monkeypatch.setenv("ART_MODEL_NAME", "second")
    assert "began with another ART_MODEL_NAME: " in refusal()
    monkeypatch.setattr(learn_loop, "learn_loop_code", lambda: "today's")
    recorded = refusal()
    assert "first began with other code (commit abc) and cannot be resumed with today's" in recorded
    assert "--set experiment=ANOTHER_NAME" in recorded


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("training/loop/trainer.py", {"training", "coding", "learn loop"}),
        ("agent/task.py", {"training"}),
        ("sandbox/inside/init.py", {"coding"}),
        ("steps/training/outputs.py", {"training", "coding", "learn loop"}),
        ("sandbox/checks.py", {"coding"}),
        ("tasks/coding/task.py", {"coding"}),
        ("tasks/outreach/task.py", {"learn loop"}),
    ],
)
def test_a_changed_file_changes_the_code_of_the_runs_that_depend_on_it(
    file: str, changed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "ROOT", tmp_path)
    codes = {"training": training_code, "coding": lambda: task_code(PLUGIN), "learn loop": learn_loop_code}
    before = {name: code() for name, code in codes.items()}
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("changed = True\n")
    assert {name for name, code in codes.items() if code() != before[name]} == changed


def test_the_gpu_profiles_plan_and_cost_are_shown_without_its_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("OPENAI_API_KEY", "WANDB_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    dry_run = ["--pipeline", "learn-loop", "--config", "configs/learn_loop_gpu.yaml", "--dry-run"]
    assert run.main(dry_run) == 2
    told, problem = capsys.readouterr()
    for words in (
        "200 train and 100 held-out prospects",
        "needs OPENAI_API_KEY",
        "needs WANDB_API_KEY",
        "steps          20",
        "at most 960, and 100 for validation",
        "W&B bills tokens",
        "160 requests, at most",
        "400 e-mails to 100 held-out prospects",
    ):
        assert words in told, words
    assert problem.startswith("error: this plan cannot run here yet: ") and "(and 2 more above)" in problem
    assert run.main([*dry_run, "--set", "backend=local", "--set", "ruler_api_base=http://127.0.0.1:1/v1"]) == 2
    assert "GPU hours      unknown" in capsys.readouterr().out


def test_a_dry_run_refuses_contradictions_before_it_plans(capsys: pytest.CaptureFixture[str]) -> None:
    contradiction = ["--set", "feedback=recorded", "--set", "random_replies=true"]
    assert run.main(["--pipeline", "learn-loop", "--dry-run", *contradiction]) == 2
    told, problem = capsys.readouterr()
    assert told == "" and "random_replies: recorded feedback" in problem


def test_arts_variables_choose_base_model_project_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_BASE_MODEL", "owner/model")
    monkeypatch.setenv("ART_PROJECT", "letters")
    monkeypatch.setenv("ART_MODEL_NAME", "writer-2")
    monkeypatch.setenv("WANDB_PROJECT", "")
    monkeypatch.delenv("WANDB_PROJECT")
    config = learn_loop_config(None, [])
    assert config.base_model == "owner/model" and os.environ["WANDB_PROJECT"] == "letters"
    assert learn_loop_config(None, ["base_model=mine"]).base_model == "mine"
    monkeypatch.setenv("WANDB_PROJECT", "chosen")
    learn_loop_config(None, [])
    assert os.environ["WANDB_PROJECT"] == "chosen"
    assert open_task(config, *world_of(config)).name == "writer-2"
    for name in ("../outside", "a/b", "-x", "x" * 65):
        monkeypatch.setenv("ART_MODEL_NAME", name)
        with pytest.raises(BadInput, match="ART_MODEL_NAME="):
            model_name()


def test_a_loop_that_began_while_this_one_waited_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = FrontDoor(tmp_path / "door", monkeypatch)
    begun = Experiment(
        name="first",
        run="first",
        config=learn_loop_config(None, ["experiment=first"]).model_dump(mode="json"),
        code=learn_loop_code(),
        git_revision=None,
        sources=sources_of(learn_loop_config(None, [])),
        base_model="m",
        base_model_checksum="0" * 64,
        created=datetime(2026, 11, 23, tzinfo=UTC),
    )

    @contextmanager
    def after_another(*_: object, **__: object) -> Iterator[None]:
        begun.save(learn_loop.LEARN_LOOPS / "first")
        yield

    monkeypatch.setattr(learn_loop, "only_loop_on", after_another)
    monkeypatch.setattr(learn_loop, "run_pipeline", lambda *_, **__: pytest.fail("it began"))
    monkeypatch.setattr(learn_loop, "base_model_content", lambda *_, **__: None)
    words = ["--pipeline", "learn-loop", "--wait", "--set", "experiment=first", "--set", "seed=5"]
    assert "learn loop first began with another seed: " in door.refuses(*words)


@pytest.mark.parametrize("words", [["--task", "coding"], ["--set", "task=email-search"], ["--config", "coding.yaml"]])
def test_another_task_is_not_replaced(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = FrontDoor(tmp_path / "door", monkeypatch)
    (door.folder / "coding.yaml").write_text("task: coding\n")
    assert "--pipeline learn-loop trains task=outreach" in door.refuses("--pipeline", "learn-loop", *words)


def test_changed_code_is_another_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for code in ("then", "today"):
        monkeypatch.setattr(learn_loop, "learn_loop_code", lambda code=code: code)
        keys.append(run_key(learn_loop_config(None, []), None))
    assert keys[0] != keys[1]
