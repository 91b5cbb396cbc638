"""What the answers of a task's evaluation depend on, and what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import run
from commands import tasks
from commands.agent_runs import Trained
from configs.loading import load_config
from examples import larger_number
from tasks import load_plugin

pytestmark = pytest.mark.service


def test_answers_that_another_code_of_the_plug_in_has_judged_are_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_task_to_evaluate.py"
    module.write_text(Path(larger_number.__file__).read_text())
    config = load_config(None, ["task=own_task_to_evaluate:PLUGIN"])
    identities: list[str] = []

    def evaluated(_: object, arguments: dict[str, Any], *__: object, **___: object) -> dict[str, Any]:
        identities.append(arguments["identity"])
        return {"policies": {}, "baselines": {}}

    monkeypatch.setattr(tasks, "evaluate_by", evaluated)
    trained = Trained(version="l1", checkpoint=UUID(int=1), warm_start=None)
    for text in ("", "", "\n# another judge\n"):
        module.write_text(module.read_text() + text)
        tasks._Run(config, load_plugin(config.task), evaluates=True).evaluate(trained, cache=True, summary=None)
    assert identities[0] == identities[1] != identities[2]


def test_another_place_of_the_base_model_reaches_the_evaluation_of_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, Any]] = []

    def evaluated(_: object, arguments: dict[str, Any], *__: object, **___: object) -> dict[str, Any]:
        given.append(arguments)
        return {"policies": {}, "baselines": {}}

    monkeypatch.setattr(tasks, "evaluate_by", evaluated)
    trained = Trained(version="l1", checkpoint=UUID(int=1), warm_start=None)
    monkeypatch.setattr(tasks, "_stored", lambda checkpoint, task: trained)
    words = ["--pipeline", "eval", "--task", "examples.larger_number:PLUGIN", "--checkpoint", "folder"]
    assert run.main([*words, "--set", "base_model=/moved/model"]) == 0 and run.main(words) == 0
    assert [arguments["base_model"] for arguments in given] == ["/moved/model", None]


def test_scenarios_with_one_id_are_refused_before_a_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = type(larger_number.PLUGIN).scenarios
    monkeypatch.setattr(type(larger_number.PLUGIN), "scenarios", lambda *chosen: [*read(*chosen), *read(*chosen)])
    words = ["--pipeline", "train", "--task", "examples.larger_number:PLUGIN", "--dry-run"]
    assert run.main(words) == 2
    assert "several pairs have the id 'pair-0': use every id once" in capsys.readouterr().err
