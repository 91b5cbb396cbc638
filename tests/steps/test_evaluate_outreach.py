"""The evaluation of a learn loop, with a scripted model in the place of its policies."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from configs.schema import LearnLoopConfig
from steps.evaluation import rows
from steps.learn_loop import ask_outreach as asking
from steps.learn_loop import evaluate_outreach as figures
from steps.learn_loop.world import world_of
from tasks.outreach.evaluation import BASELINE, GRAPH_ONLY, GRPO_ONLY, LEARNT
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.task import OutreachTask
from tests.fakes.outreach_model import OutreachModel
from training.errors import BadInput

CONFIG = LearnLoopConfig(train_prospects=2, test_prospects=2, temperature=1.5, top_p=0.9, min_p=0.1, max_tokens=64)
GRAPH, SCENARIOS = world_of(CONFIG)
FRESH = NodeScores.fresh(GRAPH)
WORLD = {"graph": GRAPH.to_lines(), "scenarios": SCENARIOS}
NODE_SCORES = {"posterior": FRESH.model_dump(), "after": FRESH.scores, "top_half": FRESH.scores}
ROWS = [BASELINE, GRAPH_ONLY, GRPO_ONLY, LEARNT]


class Asked:
    """The step that asks, with the adapters that its server got."""

    def __init__(self, model: OutreachModel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.adapters: dict[str, Path] = {}
        server = nullcontext(SimpleNamespace(base_url=model.url))
        monkeypatch.setattr(asking, "open_journal", lambda *_, **__: AnswerJournal(folder / "journal.jsonl"))
        monkeypatch.setattr(rows, "base_model_files", lambda *_, **__: SimpleNamespace(path=Path("base")))
        monkeypatch.setattr(
            rows, "open_policy_server", lambda _, given, *__, **___: self.adapters.update(given) or server
        )
        monkeypatch.setattr(rows, "finish_journal", lambda *_, **__: None)

    def predictions(self, warm_start: int = 0, config: LearnLoopConfig = CONFIG, **world: Any) -> list[Prediction]:
        """Ask; the warm start has the step `warm_start`."""
        checkpoint, before = (
            SimpleNamespace(
                path=Path("adapter"),
                manifest=SimpleNamespace(config={"max_concurrent": 2}, step=step),
                require_base=lambda files: None,
            )
            for step in (3, warm_start)
        )
        base = {"source": "base", "checksum": "", "content": ""}
        inputs: dict[str, Any] = {**WORLD, **world, "checkpoint": checkpoint, "warm_start": before, "base": base}
        return asking.ask_outreach.entrypoint(config, **inputs, node_scores=NODE_SCORES)


@pytest.mark.parametrize(("warm_start", "asked"), [(0, ["warm_start", "trained"]), (3, ["base", "trained"])])
def test_held_out_emails_are_sampled_as_in_training_and_those_of_iteration_0_before_it(
    warm_start: int, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without demonstrations has no adapter of step 0."""
    with OutreachModel() as model:
        step = Asked(model, tmp_path, monkeypatch)
        predictions = step.predictions(warm_start)
    sampling = ("temperature", "top_p", "min_p", "max_tokens")
    assert {tuple(sent[name] for name in sampling) for sent in model.requests} == {(1.5, 0.9, 0.1, 64)}
    assert list(dict.fromkeys(sent["model"] for sent in model.requests)) == asked
    assert set(step.adapters) == set(asked) - {"base"}
    assert [(p.policy, p.outcome, p.correct) for p in predictions] == [
        (row, "finished", None) for row in ROWS for _ in range(2)
    ]
    context = SimpleNamespace(step_run=SimpleNamespace(inputs={"predictions": []}))
    monkeypatch.setattr(figures, "get_step_context", lambda: context)
    nothing: dict[str, Any] = {"before": 0, "after": 0, "baseline": [], "final": []}
    shown = {"iterations": [], "node_scores": NODE_SCORES, "emails": nothing}
    evaluation, page = figures.evaluate_outreach.entrypoint(CONFIG, "run", **WORLD, predictions=predictions, **shown)
    assert list(evaluation["rows"]) == ROWS and evaluation["prospects"] == 2
    expected = [prediction.measured["expected"] for prediction in predictions[-2:]]
    assert evaluation["rows"][LEARNT]["reply_rate"] == pytest.approx(sum(expected) / 2)
    assert str(predictions[-1].measured["subject"]) in page


def test_an_interrupted_evaluation_goes_on_after_the_emails_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OutreachModel() as model:
        first = Asked(model, tmp_path, monkeypatch).predictions()
        lines = (tmp_path / "journal.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "journal.jsonl").write_text("".join(lines[:5]))
        model.requests.clear()
        again = Asked(model, tmp_path, monkeypatch).predictions()
    assert len(model.requests) == 3 * 3, "three e-mails were missing, of three turns each"
    assert {p.measured["message_id"] for p in first} & {p.measured["message_id"] for p in again} == {
        Prediction.model_validate_json(line).measured["message_id"] for line in lines[:5]
    }


def test_an_email_that_fails_is_written_again_and_too_many_failures_are_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout, left = OutreachTask.rollout, {"test-1": 2}

    async def may_fail(task: OutreachTask, policy: Any, scenario: Any) -> Any:
        if left.get(scenario.id, 0):
            left[scenario.id] -= 1
            raise TimeoutError("the policy server made no progress")
        return await rollout(task, policy, scenario)

    monkeypatch.setattr(OutreachTask, "rollout", may_fail)
    with OutreachModel() as model:
        asked = Asked(model, tmp_path, monkeypatch)
        assert all(prediction.error is None for prediction in asked.predictions())
        (tmp_path / "journal.jsonl").unlink()
        left["test-1"] = 3
        with pytest.raises(BadInput, match=r"iteration 0: 1 of 2 .*\(1 TimeoutError\), more than 2%"):
            asked.predictions()
        (tmp_path / "journal.jsonl").unlink()
        left["test-1"] = 3
        many = CONFIG.model_copy(update={"test_prospects": 50})
        predictions = asked.predictions(config=many, scenarios=world_of(many)[1])
    assert sum(prediction.error is None for prediction in predictions) == 4 * 50 - 1
    assert "iteration 0: left out, because every attempt failed: test-1" in " ".join(capsys.readouterr().out.split())
