"""Questions without reference answers: which figures exist, and which stay empty."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from agent.evaluation import Evaluation
from agent.judges import Verdict
from agent.metrics import compute_metrics, mcnemar
from agent.promotion import decide_promotion
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from environment.email_db import MailDatabase
from environment.models import Scenario
from reports.tables import closing_table
from steps.training.labels import require_labels
from tests.fakes.policy import OWNER, ScriptedPolicy
from training.errors import BadInput
from training.settings import TrainerSettings

ANSWER = ("return_final_answer_tool", {"answer": "Dana", "source_ids": [1, 2]})
QUESTION = Scenario(
    id="u1", question="Who leads Heron?", inbox_address=OWNER, query_date=datetime(2001, 2, 1), split="train"
)


class Never:
    async def judge(self, question: str, reference: str, answer: str) -> Verdict:
        raise AssertionError("there is no reference to judge by")


def test_a_rollout_is_neither_right_nor_wrong(database: MailDatabase, scripted: ScriptedPolicy) -> None:
    task = EmailSearchTask(database, [QUESTION], Never(), AgentSettings())
    scripted.replies = [ANSWER]
    rollout = asyncio.run(task.rollout(scripted.policy, QUESTION))
    assert (
        rollout.metadata["unlabelled"] and rollout.metadata["answer"] == "Dana" and "reference" not in rollout.metadata
    )
    assert not {"correct", "found", "suspect_source_spam", "suspect_turn_padding"} & set(rollout.metrics)
    assert rollout.metrics["turns"] == 1 and rollout.metrics["suspect_unread_answer"]
    assert rollout.reward == 0.0
    assert task.demonstrations([QUESTION], 1) == []


def test_an_evaluation_leaves_accuracy_empty(database: MailDatabase, scripted: ScriptedPolicy) -> None:
    evaluation = Evaluation(database, Never(), AgentSettings())
    scripted.replies = [ANSWER]
    predictions = [asyncio.run(evaluation.policy("trained", scripted.policy, QUESTION))]
    figures = compute_metrics(predictions)
    assert (figures.n, figures.accuracy, figures.ci95, figures.token_f1) == (1, None, None, None)
    assert figures.answer_rate == 1.0
    assert asyncio.run(evaluation.baseline("oracle", QUESTION)) is None
    assert mcnemar(predictions, predictions).n == 0
    decision = decide_promotion(predictions, predictions, None, floor=0, min_gain=0, significance=0.05)
    assert not decision.promoted and "no held-out question has a reference answer" in decision.reason
    table = closing_table({"n": 1, "policies": {"trained": figures.model_dump(mode="json")}})
    assert list(table.columns[2].cells) == ["-"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring": "verifiable"}, "scoring=verifiable: 1 of 1 train questions have no reference answer"),
        ({"scoring": "ruler"}, "set validation_metric=win_rate"),
        ({"scoring": "ruler", "validation_metric": "win_rate"}, "none can be demonstrated: set demonstrations=0"),
    ],
)
def test_settings_that_need_answers_are_refused_at_once(changes: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        require_labels(TrainerSettings(validate_every=1, **changes), [QUESTION])
    require_labels(TrainerSettings(scoring="ruler", validation_metric="win_rate", demonstrations=0), [QUESTION])
