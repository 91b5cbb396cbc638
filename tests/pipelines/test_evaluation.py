"""The evaluation pipeline with real servers of a tiny model: comparison with production, and a judge that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zenml import Model, save_artifact
from zenml.client import Client

from agent.prompts import load
from commands.data import DataRun
from configs.schema import DataConfig, EvaluationConfig
from materializers.checkpoint import CheckpointMaterializer
from pipelines.data_preparation import data_preparation_pipeline
from pipelines.evaluation import evaluation_pipeline
from steps.artifact_names import CHECKPOINT
from steps.data import create_database
from steps.data.sources import source_version
from steps.evaluation import journal
from tests.fakes.language_model import LanguageModel, Reply
from tests.tiny_checkpoint import tiny_checkpoint

pytestmark = pytest.mark.service


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataRun:
    monkeypatch.setattr(create_database, "DATA", tmp_path / "data")
    config = DataConfig(
        synthetic_train_inboxes=1,
        synthetic_test_inboxes=1,
        synthetic_questions_per_inbox=4,
    )
    started = data_preparation_pipeline(config=config, source_version=source_version(config))
    steps = Client().get_pipeline_run(started.id).steps
    return DataRun(
        database=steps["create_database"].outputs["mail_database"][0].id,
        scenarios=steps["load_scenarios"].outputs["scenarios"][0].id,
    )


def save_checkpoint(folder: Path, seed: int, step: int = 1, **trained_with: Any) -> Any:
    checkpoint = tiny_checkpoint(folder, seed, step=step, **trained_with)
    return save_artifact(checkpoint, name=CHECKPOINT, materializer=CheckpointMaterializer)


class Answering(LanguageModel):
    """As a policy it returns one answer; as a judge it says the same of all answers."""

    verdict = '{"reasoning": "no", "accept": false}'

    def answer(self, request: dict[str, Any]) -> Reply:
        if "tools" not in request:
            return self.verdict
        function = {"name": "return_final_answer_tool", "arguments": '{"answer": "Dana", "source_ids": []}'}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }


@pytest.fixture
def model() -> Iterator[Answering]:
    with Answering() as server:
        yield server


def test_both_versions_are_asked_the_same_questions(data: DataRun, tmp_path: Path, model: Answering) -> None:
    prompt = "Search first."
    model.verdict = '{"reasoning": "yes", "accept": true}'
    new, old = save_checkpoint(tmp_path, seed=1, step=0, system_prompt=prompt), save_checkpoint(tmp_path, seed=2)
    started = evaluation_pipeline.with_options(model=Model(name="tested-evaluation"))(
        config=EvaluationConfig(
            eval_limit=3,
            eval_samples=2,
            judge="both",
            judge_model="openai/gpt-4.1",
            judge_api_base=model.url,
            baseline_model="openai/gpt-4.1",
            baseline_api_base=model.url,
        ),
        database=data.database,
        scenarios=data.scenarios,
        checkpoint=new.id,
        warm_start=new.id,
        production=str(old.id),
    )
    steps = Client().get_pipeline_run(started.id).steps
    asked = steps["run_inference"].outputs["predictions"][0].load()
    of_production = steps["ask_production"].outputs["production_predictions"][0].load()
    assert {prediction.policy for prediction in of_production} == {"production"}
    assert [p.scenario_id for p in of_production] == [
        p.scenario_id for p in asked if p.policy == "trained" and not p.sample
    ]
    assert {prediction.transcript[0]["content"] for prediction in of_production} == {load("system")}
    assert {p.transcript[0]["content"] for p in asked if p.policy in ("base", "trained")} == {prompt}
    assert not any(prediction.error for prediction in of_production), of_production
    answers = {
        name: [(p.scenario_id, p.seconds) for p in asked if p.policy == name and not p.sample]
        for name in ("warm_start", "trained")
    }
    assert answers["warm_start"] == answers["trained"], "the best checkpoint is the warm start: one policy, asked once"
    summary = steps["compute_metrics"].outputs["metrics"][0].load()
    assert [p.sample for p in asked if p.policy == "trained"] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert summary["policies"]["trained"]["n"] == 3 and set(summary["policies"]["trained"]["pass_at"]) == {"1", "2"}
    prompted = summary["policies"]["openai/gpt-4.1"]
    assert prompted["answer_rate"] == 1.0 and prompted["cost"] > 0 and prompted["prompt_tokens"] == 1000
    assert (prompted["accuracy"], prompted["by_meaning"]) == (0.0, 1.0), "exact decides"
    assert prompted["judge_tokens"] == 3000 and prompted["judge_cost"] > 0
    assert summary["paired"]["trained_vs_production"]["n"] == 3
    # Random weights know no answer, so the floor speaks.
    assert summary["promotion"] == {"promoted": False, "reason": "0.0% correct is not above promotion_floor=0.0"}


def test_answers_that_ended_in_errors_are_asked_again_and_others_are_not(
    data: DataRun, tmp_path: Path, model: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals = tmp_path / "evaluations"
    monkeypatch.setattr(journal, "EVALUATIONS", journals)
    times: list[list[float]] = []
    checkpoint = save_checkpoint(tmp_path, seed=1)
    config = EvaluationConfig(eval_limit=2, judge="llm", judge_model="openai/gpt-4.1", judge_api_base=model.url)

    def evaluate() -> tuple[str, str, dict[str, Any]]:
        started = evaluation_pipeline.with_options(model=Model(name="tested-errors"))(
            config=config, database=data.database, scenarios=data.scenarios, checkpoint=checkpoint.id
        )
        steps = Client().get_pipeline_run(started.id).steps
        oracle = steps["compute_metrics"].outputs["metrics"][0].load()["baselines"]["oracle"]
        answers = steps["run_inference"].outputs["predictions"][0].load()
        times.append([answer.seconds for answer in answers if answer.policy in ("base", "trained")])
        return steps["run_inference"].status.value, steps["compute_metrics"].status.value, oracle

    model.verdict = "perhaps"
    asked, gate, oracle = evaluate()
    assert (asked, gate) == ("completed", "completed") and (oracle["errors"], oracle["n"]) == (2, 0)
    assert len(list(journals.iterdir())) == 1
    model.verdict = '{"reasoning": "yes", "accept": true}'
    asked, gate, oracle = evaluate()
    assert (asked, gate) == ("completed", "completed"), "the cause of an error may be gone"
    assert (oracle["errors"], oracle["n"], oracle["accuracy"]) == (0, 2, 1.0)
    assert len(times[0]) == 4 and times[0] == times[1], "answers of the policies are kept"
    assert not list(journals.iterdir()), "a finished evaluation needs no journal"
    requests = len(model.requests)
    asked, gate, again = evaluate()
    assert (asked, gate) == ("cached", "completed") and again == oracle
    assert len(model.requests) == requests, "an answer without an error is paid once"
