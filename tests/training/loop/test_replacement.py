"""Groups without spread are replaced by further questions, up to a bound, while the others are still being played."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
import pytest

from tests.training.loop.test_gathering import Scripted, comes, run
from tests.training.toy_run import RecordedProgress, ToyTask, settings, train
from training.settings import TrainerSettings
from training.task import Policy


def replacing(extra: int, **changes: Any) -> TrainerSettings:
    return settings(**{"max_extra_groups": extra, "max_steps": 2, "demonstrations": 2, **changes})


class Uneven(Scripted):
    """All rollouts of an even question are right; those of an odd one differ."""

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        trajectory.reward = float(scenario % 2 == 0 or self.number_in_group(policy, scenario) == 0)
        return trajectory


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_step_asks_on_until_its_groups_have_spread_or_the_bound_is_reached(ahead: int, tmp_path: Path) -> None:
    recorded = RecordedProgress()
    finished, backend = run(tmp_path / "wide", replacing(10, max_steps_off_policy=ahead), Uneven(), progress=recorded)
    assert [len(trained) for trained in backend.trained] == [3, 3]
    for row, trained in zip(finished.history[1:], backend.trained, strict=True):
        odd = [question for question in row.questions if question.reward_std > 0]
        assert row.groups_trained == len(odd) == 3 and all(question % 2 for question in trained)
        assert row.groups_replaced == len(row.questions) - 3 == sum(question.replaces for question in row.questions) > 0
        assert row.sampled_tokens == 40 * len(row.questions), "what was replaced was sampled too"

    narrow, backend = run(tmp_path / "narrow", replacing(1, max_steps_off_policy=ahead), Uneven())
    assert all(row.groups_replaced <= 1 for row in narrow.history)
    assert any(len(trained) < 3 for trained in backend.trained)

    dropped, _ = run(tmp_path / "none", replacing(0, max_steps_off_policy=ahead), Uneven())
    assert [len(row.questions) for row in dropped.history[1:]] == [3, 3]


def test_a_replacement_is_of_the_same_kind_while_there_is_one(tmp_path: Path) -> None:
    class Kinds(Uneven):
        def kind(self, scenario: int) -> str:
            return "rare" if scenario % 4 < 2 else "common"

    finished, backend = run(tmp_path, replacing(10), Kinds())
    for row, trained in zip(finished.history[1:], backend.trained, strict=True):
        first = [question.kind for question in row.questions if not question.replaces]
        assert sorted("rare" if question % 4 < 2 else "common" for question in trained) == sorted(map(str, first))


def test_a_replacement_begins_while_other_groups_are_still_being_played(tmp_path: Path) -> None:
    plain, _ = run(tmp_path / "plain", replacing(1, max_steps=1), Uneven())
    first, replacement = plain.history[1].questions[0], plain.history[1].questions[-1]
    assert replacement.replaces
    replaced = next(question for question in plain.history[1].questions if not question.reward_std)
    scenario = {}
    began = asyncio.Event()

    async def play(_: Policy, question: int) -> None:
        """All groups but the one without spread wait for its replacement."""
        asked = scenario.setdefault(question, len(scenario))
        if asked == 3:
            began.set()
        elif question != waiting_for:
            await comes(began)

    order = Uneven()
    run(tmp_path / "order", replacing(1, max_steps=1), order)
    played = list(dict.fromkeys(int(event.split()[1]) for event in order.events if event.startswith("play")))
    waiting_for = played[plain.history[1].questions.index(replaced)]
    assert first.index != replacement.index
    again, _ = run(tmp_path / "again", replacing(1, max_steps=1), Uneven(play=play))
    assert began.is_set() and again.history[1].rollout_errors == 0


def test_a_slow_judge_leaves_its_replacement_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.loop.gathering.STEP_TIMEOUT", 3.0)
    replaced = set[int]()

    async def slowly(question: int) -> None:
        if question % 2 == 0 and not replaced:
            replaced.add(question)
            await asyncio.sleep(4.0)

    async def briefly(*_: Any) -> None:
        await asyncio.sleep(0.01)

    finished, _ = run(tmp_path, replacing(10, max_steps=1), Uneven(play=briefly, judge=slowly))
    row = finished.history[1]
    assert row.groups_replaced and row.rollout_errors == 0


def test_the_progress_of_a_step_grows_with_its_replacements(tmp_path: Path) -> None:
    bars = RecordedProgress()
    run(tmp_path, replacing(10), Uneven(), progress=bars)
    rollouts = [(total, done) for name, total, done in bars.stages if "rollouts" in name]
    assert all(total == done > 12 for total, done in rollouts)


def test_a_group_ends_after_its_probes_if_all_of_them_are_correct(tmp_path: Path) -> None:
    class Solved(Uneven):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            trajectory.metrics["correct"] = bool(trajectory.reward)
            return trajectory

    task = Solved()
    finished, backend = run(tmp_path, replacing(10, probe_rollouts=2), task)
    for row in finished.history[1:]:
        assert {(question.rollouts, question.right) for question in row.questions} == {(2, 2), (4, 1)}
        assert [question.rollouts for question in row.questions].count(4) == row.groups_trained == 3
        assert row.accuracy == pytest.approx((row.groups_replaced + 3 * 0.5) / len(row.questions))
    assert all(question % 2 for trained in backend.trained for question in trained)

    whole, _ = run(tmp_path / "whole", replacing(0, probe_rollouts=4), Solved())
    assert all(question.rollouts == 4 for row in whole.history[1:] for question in row.questions)


def by_policy(trajectory: art.Trajectory) -> float:
    return trajectory.reward


@pytest.mark.parametrize("scoring", ["verifiable", "custom"])
def test_groups_end_after_their_probes_only_where_right_answers_are_worth_the_same(
    scoring: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AlwaysRight(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            trajectory.reward, trajectory.metrics["correct"] = 1.0, True
            return trajectory

    monkeypatch.setitem(sys.modules, "rewards_of_a_user", SimpleNamespace(by_policy=by_policy))
    function = "rewards_of_a_user:by_policy" if scoring == "custom" else None
    rules = settings(max_steps=1, probe_rollouts=2, scoring=scoring, reward_function=function)
    [_, step] = train(tmp_path, rules, AlwaysRight()).history
    assert [question.rollouts for question in step.questions] == [2 if scoring == "verifiable" else 4] * 3
