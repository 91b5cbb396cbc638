"""Judge settings: an unusable judge is reported before the first rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.judges.exact import ExactJudge
from agent.judges.llm import LLMJudge
from agent.judges.settings import JudgeSettings, open_judge
from configs.config import Config
from configs.schema import EvaluationConfig, TrainingConfig
from tests.fakes.language_model import LanguageModel, Reply
from training.errors import BadInput


@pytest.mark.parametrize("kind", [TrainingConfig, EvaluationConfig])
def test_a_judge_that_cannot_be_asked_is_one_clear_line(
    kind: type[JudgeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    kind().require_judge()
    for settings, said in (
        (kind(judge="llm"), "judge=llm asks openai/gpt-4.1, which needs OPENAI_API_KEY"),
        (kind(judge="both"), "judge=both asks openai/gpt-4.1, which needs OPENAI_API_KEY"),
        (kind(judge="llm", judge_model="nonsense"), "judge_model=nonsense names no provider"),
    ):
        with pytest.raises(BadInput, match=said) as caught:
            settings.require_judge()
        assert "\n" not in str(caught.value)


class Door(LanguageModel):
    """Lets in one key."""

    def answer(self, request: dict[str, Any]) -> Reply:
        return "ready" if self.keys[-1] == "Bearer the key" else 401


@pytest.mark.parametrize("kind", [TrainingConfig, EvaluationConfig])
def test_a_judge_that_refuses_the_key_or_is_not_there_is_one_clear_line(
    kind: type[JudgeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Door() as door:
        settings = kind(judge="llm", judge_api_base=door.url)
        monkeypatch.setenv("OPENAI_API_KEY", "the key")
        settings.require_judge()
        monkeypatch.setenv("OPENAI_API_KEY", "another key")
        with pytest.raises(BadInput, match=f"^judge_model=openai/gpt-4.1 at {door.url} cannot be asked: .*401") as said:
            settings.require_judge()
        assert "\n" not in str(said.value) and len(door.requests) == 2
    with pytest.raises(BadInput, match="cannot be asked"):
        settings.require_judge()


def test_a_budget_for_a_judge_without_a_price_is_refused() -> None:
    with Door() as door:
        door.answer = lambda request: "ready"  # type: ignore[method-assign]
        TrainingConfig(judge="llm", judge_api_base=door.url, stop_cost=5).require_judge()
        unpriced = TrainingConfig(judge="llm", judge_model="openai/own", judge_api_base=door.url, stop_cost=5)
        with pytest.raises(
            BadInput, match="^stop_cost=5 could never take effect: LiteLLM knows no price of openai/own$"
        ):
            unpriced.require_judge()


def test_a_self_hosted_judge_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert isinstance(open_judge(JudgeSettings()), ExactJudge)
    judge = open_judge(JudgeSettings(judge="llm", judge_api_base="http://127.0.0.1:1"))
    assert isinstance(judge, LLMJudge) and judge.api_key == "none"


def test_a_second_verdict_is_beside_the_exact_one_and_changes_no_training() -> None:
    with Door() as door:
        door.answer = lambda request: '{"accept": true}'  # type: ignore[method-assign]
        judge = open_judge(JudgeSettings(judge="both", judge_api_base=door.url))
        verdict = asyncio.run(judge.judge("When do we meet?", "2:30 pm", "in the afternoon"))
    assert (verdict.correct, verdict.same_meaning, verdict.prompt_tokens) == (False, True, 1000)
    assert Config(evaluation=EvaluationConfig(judge="both")).for_training() == Config().for_training()
