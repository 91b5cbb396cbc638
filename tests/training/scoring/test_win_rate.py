"""Training without reference answers: a judge on loopback rewards, validates and stops."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import art
import pytest

from tests.fakes.judge import JudgeModel, scores
from tests.training import toy_run
from tests.training.toy_run import Killed, RecordedProgress, ToyTask, train
from tests.training.toy_run import settings as toy_settings
from training.errors import BadInput
from training.scoring.scorer import require_scoring
from training.settings import TrainerSettings
from training.task import UNLABELLED, Policy


class Unlabelled(ToyTask):
    """Says nothing of correctness; what a rollout is worth only its text shows."""

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        good = trajectory.metrics.pop("correct")
        # The prefix that both have in common is what RULER's prompt shows once.
        trajectory.messages_and_choices = [
            {"role": "user", "content": f"question {scenario}"},
            {
                "role": "assistant",
                "content": f"worth={int(good)} take {random.Random(f'{policy.model}{scenario}').random()}",
            },
        ]
        trajectory.reward = 0.0
        trajectory.metadata[UNLABELLED] = True
        return trajectory


def by_worth(ids: list[str], asked: str) -> str:
    """Good answers score 0.9, others 0.1; of equals it prefers what it is shown first."""
    worth = [int(value) for value in re.findall(r"worth=(\d)", asked)][-len(ids) :]
    return scores(
        {id: 0.8 * value + 0.1 - 0.01 * place for place, (id, value) in enumerate(zip(ids, worth, strict=True))}
    )


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeModel]:
    monkeypatch.setitem(toy_run.SKILL, 0, 0.4)
    with JudgeModel() as server:
        server.reply = by_worth
        yield server


def settings(judge: JudgeModel, **changes: Any) -> TrainerSettings:
    unlabelled = {"demonstrations": 0, "validation_metric": "win_rate", "validate_every": 1}
    return toy_settings(**{**judge.rules, **unlabelled, **changes})


def rates(run: Any) -> list[float | None]:
    return [row.validation_win_rate for row in run.history]


def test_the_best_checkpoint_is_the_one_that_wins_most_and_accuracy_stays_empty(
    judge: JudgeModel, tmp_path: Path
) -> None:
    recorded = RecordedProgress()
    run = train(tmp_path, settings(judge, max_steps=5), Unlabelled(), recorded)
    assert all(row.accuracy is None and row.validation_accuracy is None for row in run.history)
    assert all(row.validation_reward is None and row.validation_errors == 0 for row in run.history)
    # Checkpoint 4 of the toy's skills is the best, and better than the start.
    assert [row.phase for row in run.history[:2]] == ["untouched", "grpo"] and rates(run)[0] == 0.5
    assert run.checkpoint_of == 4 and max(rates(run)) == run.history[4].validation_win_rate > 0.5
    assert "best checkpoint: step 4, validation win_rate" in recorded.reasons[0]
    compared = [request["messages"][-1]["content"] for request in judge.requests]
    pairs = [text for text in compared if text.count("<trajectory id=") == 2]
    assert len(pairs) == 2 * 10 * 5, "each question after each step, in both orders"
    assert all(row.judge_requests == 3 + 20 for row in run.history[1:]), "stop_cost counts what validation asks too"
    assert train(tmp_path, settings(judge, max_steps=5), Unlabelled()).history == run.history


def test_a_judge_that_prefers_a_position_gives_a_tie(judge: JudgeModel, tmp_path: Path) -> None:
    judge.reply = lambda ids, asked: scores({id: 1.0 - 0.1 * place for place, id in enumerate(ids)})
    run = train(tmp_path, settings(judge, max_steps=2), Unlabelled())
    assert rates(run) == [0.5, 0.5, 0.5]


def test_a_run_stops_by_wins_and_goes_on_against_the_same_start(judge: JudgeModel, tmp_path: Path) -> None:
    rules = settings(judge, max_steps=6, stop_target=0.6)
    whole = train(tmp_path / "whole", rules, Unlabelled())
    assert "reached stop_target=0.6" in whole.stopped and whole.history[-1].step < 6
    with pytest.raises(Killed):
        train(tmp_path / "killed", rules, Unlabelled(die=lambda policy, count: count == 50))
    again = train(tmp_path / "killed", rules, Unlabelled())
    assert rates(again) == rates(whole) and again.checkpoint_of == whole.checkpoint_of
    [kept] = (tmp_path / "killed").rglob("validation_start.json")
    kept.unlink()
    with pytest.raises(BadInput, match="validation_start.json is missing or damaged"):
        train(tmp_path / "killed", settings(judge, max_steps=6), Unlabelled())


def test_a_warm_start_is_the_start(judge: JudgeModel, tmp_path: Path) -> None:
    run = train(tmp_path, settings(judge, max_steps=1, demonstrations=2), Unlabelled())
    assert rates(run)[0] == 0.5 and len(rates(run)) == 2


def test_wins_need_a_judge_that_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(BadInput, match="validation_metric=win_rate asks openai/o4-mini, which needs OPENAI_API_KEY"):
        require_scoring(TrainerSettings(validation_metric="win_rate", validate_every=1))
    require_scoring(TrainerSettings(validation_metric="win_rate", validate_every=0))
