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
from tests.fakes.language_model import LanguageModel

pytestmark = pytest.mark.service


class Ready(LanguageModel):
    def answer(self, request: dict[str, Any]) -> str:
        return "ready"


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


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ([], "baseline_model=openai/gpt-4.1 needs OPENAI_API_KEY in the environment or in .env"),
        (["--set", "baseline_api_base=http://127.0.0.1:9/v1"], "at http://127.0.0.1:9/v1 cannot be asked: "),
    ],
)
def test_a_baseline_model_that_cannot_be_asked_is_named_before_the_training(
    place: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(tasks, "train_by", lambda *_, **__: pytest.fail("it was trained"))
    words = ["--pipeline", "all", "--task", "examples.larger_number:PLUGIN", "--set", "validate_every=0"]
    assert run.main([*words, "--set", "baseline_model=gpt-4.1", *place]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_a_baseline_model_is_asked_by_its_bare_name(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    monkeypatch.setattr(
        tasks, "evaluate_by", lambda *_, **__: evaluated.append("once") or {"policies": {}, "baselines": {}}
    )
    trained = Trained(version="l1", checkpoint=UUID(int=1), warm_start=None)
    monkeypatch.setattr(tasks, "_stored", lambda checkpoint, task: trained)
    words = ["--pipeline", "eval", "--task", "examples.larger_number:PLUGIN", "--checkpoint", "folder"]
    with Ready() as model:
        words += ["--set", "baseline_model=owner/own", "--set", f"baseline_api_base={model.url}"]
        assert run.main(words) == 0
    assert [request["model"] for request in model.requests] == ["owner/own"] and evaluated == ["once"]


def test_scenarios_with_one_id_are_refused_before_a_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = type(larger_number.PLUGIN).scenarios
    monkeypatch.setattr(type(larger_number.PLUGIN), "scenarios", lambda *chosen: [*read(*chosen), *read(*chosen)])
    words = ["--pipeline", "train", "--task", "examples.larger_number:PLUGIN", "--dry-run"]
    assert run.main(words) == 2
    assert "several pairs have the id 'pair-0': use every id once" in capsys.readouterr().err
