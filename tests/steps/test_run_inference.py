"""Selection of the policies of a training run to evaluate."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.settings import AgentSettings
from configs.schema import EvaluationConfig, LearnLoopConfig
from steps.evaluation import ask_task, run_inference
from steps.evaluation.prompted import prompted_model
from steps.evaluation.run_inference import adapters_to_ask, question_limit
from steps.learn_loop import ask_outreach
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.synthetic import synthetic_graph
from tasks.workbench.scenarios import WorkbenchSettings
from tasks.workbench.task import WorkbenchTask
from tests.tasks.workbench.office import write_csv, write_office
from training.errors import BadInput


def checkpoint(step: int, checksum: str, **config: Any) -> Any:
    base = {"base_model_source": "a folder", "base_model_checksum": "of the base"}
    manifest = SimpleNamespace(step=step, adapter_checksum=checksum, config=config, name="r1", **base)
    return SimpleNamespace(path=Path(checksum), manifest=manifest)


def test_a_warm_start_is_a_row_only_where_there_was_one() -> None:
    trained, warm_start = checkpoint(6, "a"), checkpoint(0, "b")
    assert list(adapters_to_ask(trained, warm_start)) == ["warm_start", "trained"]
    assert list(adapters_to_ask(trained, None)) == ["trained"]
    assert list(adapters_to_ask(trained, trained)) == ["trained"], "a run without demonstrations has no warm start"
    assert list(adapters_to_ask(checkpoint(0, "b"), warm_start)) == ["warm_start"], (
        "the best checkpoint is the warm start"
    )


def test_the_checkpoint_that_a_run_continued_from_is_no_warm_start() -> None:
    trained, start = checkpoint(6, "a", continue_from="id"), checkpoint(0, "b", continue_from="id")
    assert list(adapters_to_ask(trained, start)) == ["start", "trained"]
    assert list(adapters_to_ask(checkpoint(0, "b", continue_from="id"), start)) == ["start"]


def test_policies_that_are_only_compared_with_are_asked_fewer_questions() -> None:
    config, adapters = EvaluationConfig(start_limit=150, base_limit=20), {"warm_start": Path(), "trained": Path()}
    limits = [question_limit(config, name, adapters) for name in ("base", "warm_start", "start", "trained")]
    assert limits == [20, 150, 150, None]
    assert question_limit(config, "warm_start", {"warm_start": Path()}) is None, "it is the trained policy too"


@pytest.mark.parametrize(("judge", "kept"), [("exact", False), ("llm", True), ("both", True)])
def test_a_verdict_on_a_baseline_is_paid_once(judge: Any, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, bool] = {}

    class Asked:
        async def of(self, name: str, *_: object, kept: bool = True, **__: object) -> list[Any]:
            seen[name] = kept
            return []

    monkeypatch.setattr(EvaluationConfig, "require_judge", lambda config: None)
    monkeypatch.setattr(run_inference, "select_questions", lambda scenarios, limit: [SimpleNamespace(id="q")])
    monkeypatch.setattr(run_inference, "episode_settings", lambda config: AgentSettings())
    monkeypatch.setattr(run_inference, "open_journal", lambda config, base: None)
    monkeypatch.setattr(run_inference, "ask_rows", lambda ask, *_, **__: asyncio.run(ask(Asked(), "http://here")))
    run_inference.run_inference.entrypoint(
        config=EvaluationConfig(judge=judge),
        base={"content": "c"},
        checkpoint=checkpoint(6, "a"),
        database=None,
        scenarios=[],
    )
    assert {seen[name] for name in run_inference.BASELINES} == {kept} and seen["trained"]


class Opened(Exception):
    """A step has opened its journal."""


@pytest.mark.parametrize("module", [ask_task, ask_outreach])
def test_answers_under_another_chat_template_are_not_those_of_an_interrupted_evaluation(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, base: str, **__: object) -> None:
        raise Opened(base)

    monkeypatch.setattr(module, "open_journal", opened)
    base = {"checksum": "of the weights", "content": "of all files", "source": "a folder"}
    trained, graph = checkpoint(6, "a"), synthetic_graph(0)
    arguments: dict[str, Any] = {"config": EvaluationConfig(), "task": "coding", "settings": {}, "identity": ""}
    step = ask_task.ask_task
    if module is ask_outreach:
        scores = {"posterior": NodeScores.fresh(graph).model_dump()}
        arguments = {"config": LearnLoopConfig(), "graph": graph.to_lines(), "scenarios": [], "node_scores": scores}
        step = ask_outreach.ask_outreach
    with pytest.raises(Opened, match="of all files"):
        step.entrypoint(**arguments, base=base, checkpoint=trained, warm_start=trained)


Ask = Callable[..., dict[str, int]]


@pytest.fixture
def ask_office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Evaluates a policy of the office task. Gives the number of tasks of each row; nothing is played."""
    folder = write_office(tmp_path / "office")

    class Counted:
        def __init__(self) -> None:
            self.rows: dict[str, int] = {}

        async def of(self, name: str, scenarios: Sequence[Any], *_: object, **__: object) -> list[Any]:
            self.rows[name] = len(scenarios)
            return []

    def ask(
        trained_with: dict[str, Any],
        *,
        step: int = 6,
        production: bool = False,
        began_with: dict[str, Any] | None = None,
        **evaluation: Any,
    ) -> dict[str, int]:
        counted = Counted()
        monkeypatch.setattr(ask_task, "open_journal", lambda *_, **__: None)
        monkeypatch.setattr(ask_task, "ask_rows", lambda ask, *_, **__: asyncio.run(ask(counted, "http://here")))
        known = {"folder": str(folder), "exercises": 2}

        def policy(trained_with: dict[str, Any], step: int, start: str | None) -> Any:
            recorded = WorkbenchSettings(**{**known, **trained_with}).model_dump(mode="json") if trained_with else {}
            limits = {"max_turns": 1, "max_tokens": 8, "seed": 0}
            return checkpoint(step, "a", **recorded, task="workbench", continue_from=start, **limits)

        trained = policy(trained_with, step, "its start" if began_with else None)
        monkeypatch.setattr(ask_task, "find_checkpoint", lambda _: SimpleNamespace(checkpoint=trained))
        start = policy(began_with or {}, 6, "deleted").manifest
        start.name = "r0"
        monkeypatch.setattr(ask_task, "find_manifest", {"its start": start}.get)
        settings = WorkbenchSettings(**known, held_out_templates=evaluation.pop("share")).model_dump(mode="json")
        asked = {"task": "workbench", "settings": settings, "identity": ""}
        asked["config"] = EvaluationConfig(base_limit=None, **evaluation)
        if production:
            ask_task.ask_task_production.entrypoint(**asked, production="an id")
        else:
            ask_task.ask_task.entrypoint(**asked, base={"content": "c"}, checkpoint=trained)
        return counted.rows

    return ask


DEFAULT_SPLIT, ALL_HELD_OUT = {"held_out_templates": 1 / 3}, {"held_out_templates": 1}


def test_a_policy_is_not_evaluated_on_what_it_was_trained_on(ask_office: Ask) -> None:
    refused = (
        r"^checkpoint r1 was trained on 6 of these 8 held-out tasks: evaluate it with the settings of task workbench"
    )
    with pytest.raises(BadInput, match=refused):
        ask_office(DEFAULT_SPLIT, share=1)
    assert ask_office(DEFAULT_SPLIT, share=1 / 3)["trained"] == 2
    assert ask_office(ALL_HELD_OUT, share=1 / 3)["trained"] == 2, "it was trained on invented tasks alone"
    assert ask_office({}, share=1)["trained"] == 8, "its settings were not recorded"
    assert ask_office({**DEFAULT_SPLIT, "folder": "/gone"}, share=1)["trained"] == 8


def test_what_its_start_was_trained_on_counts(ask_office: Ask) -> None:
    refused = r"^checkpoint r1 continues run r0, which was trained on 6 of these 8 .* but not from that run$"
    with pytest.raises(BadInput, match=refused):
        ask_office(ALL_HELD_OUT, began_with=DEFAULT_SPLIT, share=1)
    assert ask_office(ALL_HELD_OUT, began_with=ALL_HELD_OUT, share=1)["trained"] == 8


def test_tasks_of_other_data_may_have_the_same_ids(ask_office: Ask, tmp_path: Path) -> None:
    other = write_office(tmp_path / "other")
    for file in (other / "queries_and_answers").iterdir():
        head, *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
        write_csv(file, [head, *([f"Please: {query}", *rest] for query, *rest in rows)])
    assert ask_office({**DEFAULT_SPLIT, "folder": str(other)}, share=1)["trained"] == 8


def test_a_warm_start_was_trained_on_what_is_demonstrated(ask_office: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_office(DEFAULT_SPLIT, share=1, step=0)["trained"] == 8, "only invented tasks are demonstrated"
    monkeypatch.setattr(WorkbenchTask, "demonstrations", lambda task, scenarios, limit: scenarios[:limit])
    with pytest.raises(BadInput, match="was trained on 6"):
        ask_office(DEFAULT_SPLIT, share=1, step=0)


def test_production_is_not_asked_what_it_was_trained_on(ask_office: Ask) -> None:
    assert ask_office(DEFAULT_SPLIT, share=1, production=True) == {"production": 2}
    assert ask_office(ALL_HELD_OUT, share=1 / 3, production=True) == {"production": 2}


@pytest.mark.parametrize("name", ["trained", "base", "production", "start", "warm_start", "do_nothing", "some-model"])
def test_a_model_to_compare_with_has_a_row_of_its_own(ask_office: Ask, name: str) -> None:
    with pytest.raises(BadInput, match=f"^baseline_model={name}: another row .* write openai/{name} instead$"):
        ask_office(DEFAULT_SPLIT, share=1 / 3, baseline_model=name)
    assert ask_office(DEFAULT_SPLIT, share=1 / 3, baseline_model=f"openai/{name}")[f"openai/{name}"] == 2


@pytest.mark.parametrize("name", ["trained", "base_with_grammar", "search_and_quote"])
def test_so_it_has_for_mail(name: str) -> None:
    with pytest.raises(BadInput, match=f"^baseline_model={name}: another row"):
        prompted_model(EvaluationConfig(baseline_model=name), AgentSettings())
