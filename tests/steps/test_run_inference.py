"""Selection of the policies of a training run to evaluate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.settings import AgentSettings
from configs.schema import EvaluationConfig, LearnLoopConfig
from steps.evaluation import ask_task, run_inference
from steps.evaluation.run_inference import adapters_to_ask, question_limit
from steps.learn_loop import ask_outreach
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.synthetic import synthetic_graph


def checkpoint(step: int, checksum: str, **config: Any) -> Any:
    manifest = SimpleNamespace(step=step, adapter_checksum=checksum, config=config)
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
