"""Held-out questions about mail: which are asked again, and what failed attempts cost."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

import agent.evaluation
from agent.answer_journal import AnswerJournal
from agent.evaluation import Evaluation
from agent.judges import JudgeError, Verdict
from agent.judges.exact import ExactJudge
from agent.metrics import Prediction
from agent.rollout import AgentRun, answer_question
from agent.settings import AgentSettings
from environment.email_db import MailDatabase
from environment.models import Scenario
from steps.evaluation.rows import Predict, Rows
from tests.fakes.policy import ScriptedPolicy

SEARCH = ("search_inbox_tool", {"keywords": ["Heron"]})
READ = ("read_email_tool", {"email_id": 1})
ANSWER = ("return_final_answer_tool", {"answer": "555-0173", "source_ids": [1, 2]})


def asked(predict: Predict, question: Scenario, folder: Path) -> list[Prediction]:
    """Return the row of a new evaluation."""
    journal = folder / "journal.jsonl"
    journal.unlink(missing_ok=True)
    return asyncio.run(Rows(AnswerJournal(journal), concurrent=2).of("trained", [question], predict))


def test_a_question_that_fails_is_asked_again_and_too_many_failures_are_no_result(
    scripted: ScriptedPolicy,
    database: MailDatabase,
    two_mail_question: Scenario,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails = 2

    async def fail_at_first(*arguments: object, **named: object) -> AgentRun:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise TimeoutError("too busy")
        return await answer_question(*arguments, **named)

    monkeypatch.setattr(agent.evaluation, "answer_question", fail_at_first)
    predict = partial(Evaluation(database, ExactJudge(), AgentSettings()).policy, "trained", scripted.policy)

    def ask() -> list[Prediction]:
        scripted.replies = [SEARCH, READ, ANSWER]
        return asked(predict, two_mail_question, tmp_path)

    assert [(prediction.error, prediction.correct) for prediction in ask()] == [(None, True)]
    fails = 3
    assert [prediction.error for prediction in ask()] == ["TimeoutError"]


def test_a_judge_without_a_verdict_is_paid_for_too(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario, tmp_path: Path
) -> None:
    class Failing(ExactJudge):
        failures = 2

        async def judge(self, question: str, reference: str, answer: str) -> Verdict:
            self.failures -= 1
            if self.failures >= 0:
                raise JudgeError("no verdict", prompt_tokens=3000, cost=0.25)
            return await super().judge(question, reference, answer)

    judge = Failing()
    predict = partial(Evaluation(database, judge, AgentSettings()).policy, "trained", scripted.policy)

    def ask() -> Prediction:
        scripted.replies = [SEARCH, READ, ANSWER] * 3
        [prediction] = asked(predict, two_mail_question, tmp_path)
        return prediction

    judged = ask()
    assert (judged.correct, judged.judge_tokens, judged.judge_cost) == (True, 6000, 0.5)
    judge.failures = 3
    failed = ask()
    assert (failed.error, failed.judge_tokens, failed.judge_cost) == ("JudgeError", 9000, 0.75)
