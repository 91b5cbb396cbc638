"""Runs that compare single replies: groups, questions, figures, kills and what is refused."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import art
import pytest

from tests.training.toy_run import CountingBackend, Killed, RecordedProgress, ToyTask, run_with, settings
from training.errors import BadInput
from training.loop.decisions import compared_decisions
from training.loop.selection import OpenQuestions, TrainQuestion
from training.loop.trainer import TrainingRun
from training.record.history import HISTORY_FILE, DecisionFigures, read_history
from training.settings import TrainerSettings
from training.task import DECISION, Policy

OPEN = {number for number in range(40) if number % 4 == 0}


class Deciding(ToyTask):
    """Two decisions per question. Some replies are right at `first`, unless the policy knows the question; all at `second`."""

    decisions = ("first", "second")
    usual_decisions = decisions

    def __init__(self, die: Any = None, *, known: Collection[int] = ()) -> None:
        super().__init__(die)
        self.known = known
        self.decided: list[tuple[int, int, tuple[str, ...], int, bool]] = []
        self.fails: Collection[int] = ()
        self.probes: set[int] = set()

    def is_open(self, scenario: int, decisions: Collection[str]) -> bool:
        assert set(decisions) <= set(self.decisions)
        return scenario in OPEN

    async def decide(
        self, policy: Policy, scenario: int, decisions: Collection[str], replies: int, probes: int, *, continued: bool
    ) -> list[art.TrajectoryGroup]:
        step = int(policy.model.partition("@")[2])
        self.decided.append((step, scenario, tuple(decisions), replies, continued))
        self.probes.add(probes)
        if self.die(policy, len(self.decided)):
            raise Killed
        if scenario in self.fails:
            raise OSError("the connection was reset")
        return [
            art.TrajectoryGroup([self._reply(scenario, name, number) for number in range(replies)])
            for name in decisions
        ]

    def _reply(self, scenario: int, name: str, number: int) -> art.Trajectory:
        right = name == "second" or scenario in self.known or number % 2 == 0
        return art.Trajectory(
            messages_and_choices=[],
            reward=float(right),
            metrics={"correct": right, "turns": 1, "sampled_tokens": 10},
            metadata={DECISION: name, "scenario_id": str(scenario)},
        )


class Recording(CountingBackend):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.trained: list[list[tuple[str, str]]] = []

    async def train(self, model: Any, groups: Any, **arguments: Any) -> Any:
        first = [group.trajectories[0].metadata for group in groups]
        self.trained.append([(about["scenario_id"], about.get(DECISION, "episode")) for about in first])
        return await super().train(model, groups, **arguments)


def run(folder: Path, rules: TrainerSettings, task: Deciding) -> tuple[TrainingRun, Recording]:
    return run_with(Recording, folder, rules, task, RecordedProgress())


def deciding(**changes: Any) -> TrainerSettings:
    return settings(**{"groups_per_step": 4, "max_steps": 3, "decisions": None, **changes})


def test_a_task_with_decisions_learns_from_groups_of_replies_with_spread(tmp_path: Path) -> None:
    task = Deciding()
    finished, backend = run(tmp_path, deciding(), task)
    assert {call[2:] for call in task.decided} == {(("first", "second"), 4, False)}
    assert all(name == "first" for step in backend.trained for _, name in step)
    for row in finished.history[1:]:
        assert row.decisions == {
            "first": DecisionFigures(groups=4, with_spread=4, right=0.5),
            "second": DecisionFigures(groups=4, with_spread=0, right=1.0),
        }
        assert (row.accuracy, row.rollouts_sampled, row.groups_trained, row.groups_dropped) == (0.75, 32, 4, 0)
        assert [question.decision for question in row.questions] == ["first", "second"] * 4


def test_the_settings_name_the_decisions(tmp_path: Path) -> None:
    task = Deciding()
    rules = deciding(decisions=("first",), decision_reward="continued", rollouts_per_group=3)
    finished, backend = run(tmp_path / "some", rules, task)
    assert {call[2:] for call in task.decided} == {(("first",), 3, True)} and task.probes == {3}
    for step, row in zip(backend.trained, finished.history[1:], strict=True):
        assert sorted(name for _, name in step) == ["first"] * 4
        assert len(row.questions) == 4 and row.decisions["first"].groups == 4
    probing = Deciding()
    run(tmp_path / "probing", deciding(probe_rollouts=2), probing)
    assert probing.probes == {2}
    none = Deciding()
    run(tmp_path / "none", deciding(decisions=()), none)
    assert not none.decided and none.asked


def test_three_quarters_of_a_step_are_open_questions_and_solved_ones_make_room(tmp_path: Path) -> None:
    task = Deciding(known=range(20))
    rules = deciding(max_steps=8, open_share=0.75)
    run(tmp_path, rules, task)
    asked = [{scenario for step, scenario, *_ in task.decided if step == number} for number in range(1, 9)]
    assert all(len(step & OPEN) == 3 and len(step) == 4 for step in asked[:3])
    first_pass = set().union(*asked[:3])
    assert len(first_pass & OPEN) == 9, "those asked least often come first"
    # From then on, questions are open that were not solved, and only one of a step is not.
    for number, step in enumerate(asked[4:], start=4):
        before = set().union(*asked[:number])
        unsolved = {scenario for scenario in before if scenario not in task.known} | (OPEN - before)
        assert len(step & unsolved) >= 3


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_killed_run_asks_the_same_questions_again(ahead: int, tmp_path: Path) -> None:
    rules = deciding(max_steps=5, max_steps_off_policy=ahead, max_concurrent=1)
    whole, plain = run(tmp_path / "whole", rules, Deciding(known=range(20)))
    for kill in range(1, 21, 3):
        folder = tmp_path / str(kill)
        with pytest.raises(Killed):
            run(folder, rules, Deciding(lambda _, count, at=kill: count == at, known=range(20)))
        before = read_history(folder / "tests" / "models" / "toy" / HISTORY_FILE)
        finished, backend = run(folder, rules, Deciding(known=range(20)))
        assert backend.trained == plain.trained[len(before) - 1 :], f"killed at episode {kill}"
        assert [row.questions for row in finished.history] == [row.questions for row in whole.history]


def test_demonstrations_show_questions_whose_decisions_are_not_open(tmp_path: Path) -> None:
    task = Deciding()
    run(tmp_path, deciding(demonstrations=20), task)
    assert len(task.demonstrated) == 20 and not OPEN & set(task.demonstrated)
    assert not set(task.demonstrated) & {scenario for _, scenario, *_ in task.decided}


def test_an_episode_that_fails_twice_is_left_out_and_reported(tmp_path: Path) -> None:
    task = Deciding()
    asked = [scenario for _, scenario, *_ in run_and_return(tmp_path / "plain", deciding(max_steps=1), task).decided]
    failing = Deciding()
    failing.fails = asked[:1]
    finished, _ = run(tmp_path / "failing", deciding(max_steps=1), failing)
    row = finished.history[1]
    assert (row.rollout_errors, row.groups_dropped, row.decisions["first"].groups) == (1, 1, 3)
    assert "OSError: the connection was reset" in row.warnings[0]
    failing.fails = range(40)
    with pytest.raises(BadInput, match=r"^step 1: 4 rollouts failed .*none finished; the same command resumes"):
        run(tmp_path / "all", deciding(max_steps=1), failing)


def run_and_return(folder: Path, rules: TrainerSettings, task: Deciding) -> Deciding:
    run(folder, rules, task)
    return task


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            ToyTask(),
            r"^decisions: task toy has no decision 'frist': it has none; decisions=\[\] compares whole episodes$",
        ),
        (Deciding(), r"^decisions: task toy has no decision 'frist': its decisions are first, second; decisions=\[\]"),
    ],
)
def test_decisions_that_a_task_does_not_have_are_refused_before_anything_is_spent(
    task: ToyTask, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        run_with(CountingBackend, tmp_path, deciding(decisions=("frist",)), task)
    assert not task.demonstrated and not task.asked


def test_rewards_that_compare_whole_episodes_refuse_decisions_and_take_episodes_by_default() -> None:
    own = Deciding.decisions, ("first",), "toy"
    with pytest.raises(
        ValueError, match=r"decisions=\['first'\]: scoring=ruler compares whole episodes; set decisions=\[\]"
    ):
        deciding(decisions=("first",), scoring="ruler")
    assert compared_decisions(deciding(scoring="ruler"), *own) == ()
    assert compared_decisions(deciding(), *own) == ("first",)
    assert compared_decisions(deciding(epochs=2), *own) == ()
    every = ("first", "second")
    assert compared_decisions(deciding(decisions=every), *own) == every
    with pytest.raises(
        BadInput, match=r"^epochs=2: a run that compares decisions asks open questions, not all in turn"
    ):
        compared_decisions(deciding(decisions=every, epochs=2), *own)
    assert compared_decisions(deciding(epochs=2, decisions=()), *own) == ()


def test_a_run_without_open_questions_asks_the_others() -> None:
    questions = [TrainQuestion(number, number, None) for number in range(10)]
    selection = OpenQuestions(questions, set(), deciding(groups_per_step=6))
    assert len({question.index for question in selection.for_step(1, []).asked}) == 6
    everything = OpenQuestions(questions, set(range(10)), deciding(groups_per_step=6))
    assert len({question.index for question in everything.for_step(1, []).asked}) == 6
