"""The judge that a run names: whether it can be asked is known before anything is played."""

from __future__ import annotations

import pytest

from agent.judges.exact import ExactJudge
from agent.judges.llm import LLMJudge
from agent.judges.settings import JudgeSettings, open_judge
from configs.schema import EvaluationConfig, TrainingConfig
from environment.errors import BadInput


@pytest.mark.parametrize("kind", [TrainingConfig, EvaluationConfig])
def test_a_judge_that_cannot_be_asked_is_one_clear_line(kind: type[JudgeSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    kind().require_judge()
    for settings, said in (
        (kind(judge="llm"), "judge=llm asks openai/gpt-4.1, which needs OPENAI_API_KEY"),
        (kind(judge="llm", judge_model="nonsense"), "judge_model=nonsense names no provider"),
    ):
        with pytest.raises(BadInput, match=said) as caught:
            settings.require_judge()
        assert "\n" not in str(caught.value)
    kind(judge="llm", judge_api_base="http://127.0.0.1:1").require_judge()
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    kind(judge="llm").require_judge()


def test_a_self_hosted_judge_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert isinstance(open_judge(JudgeSettings()), ExactJudge)
    judge = open_judge(JudgeSettings(judge="llm", judge_api_base="http://127.0.0.1:1"))
    assert isinstance(judge, LLMJudge) and judge.api_key == "none"
