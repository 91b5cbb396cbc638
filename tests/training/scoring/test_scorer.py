"""Rewards from a judge on loopback, from functions of the user's, and from several sources at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import art
import pytest

from tests.fakes.judge import JudgeModel, by_id, one_short, prose, scores
from training.errors import BadInput
from training.scoring.ruler import JudgeUse, RulerJudge
from training.scoring.scorer import Scorer, require_scoring, scoring_sources
from training.settings import TrainerSettings


def group(rollouts: int = 8, question: str = "who?") -> art.TrajectoryGroup:
    """Rollouts whose verifiable reward is their number."""
    asked = [{"role": "system", "content": "search"}, {"role": "user", "content": question}]
    return art.TrajectoryGroup(
        art.Trajectory(
            messages_and_choices=[*asked, {"role": "assistant", "content": f"answer {number}"}],
            reward=float(number),
            metadata={"number": number},
        )
        for number in range(rollouts)
    )


@pytest.fixture
def model() -> Iterator[JudgeModel]:
    with JudgeModel() as server:
        yield server


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def settings(model: JudgeModel | None = None, **changes: Any) -> TrainerSettings:
    rules = model.rules if model else {"scoring": "ruler", "ruler_model": "openai/own"}
    return TrainerSettings(**{**rules, **changes})


def score(rules: TrainerSettings, folder: Path, *groups: art.TrajectoryGroup) -> list[tuple[Any, JudgeUse]]:
    async def run() -> list[tuple[Any, JudgeUse]]:
        scorer = Scorer(rules, folder)
        return list(await asyncio.gather(*(scorer.score(one) for one in groups)))

    return asyncio.run(run())


def rewards(scored: art.TrajectoryGroup) -> list[float]:
    return [trajectory.reward for trajectory in scored.trajectories]


def test_scores_belong_to_the_trajectory_whose_id_they_name(model: JudgeModel, tmp_path: Path) -> None:
    [(scored, use)] = score(settings(model), tmp_path, group())
    assert rewards(scored) == [number / 7 for number in range(8)]
    assert [trajectory.logs for trajectory in scored.trajectories][2] == ["judge: so good is 3"]
    assert [trajectory.metrics["verifiable_reward"] for trajectory in scored.trajectories] == list(range(8))
    assert (use.requests, use.cached, use.problem) == (1, 0, "") and use.seconds > 0


def test_scores_are_clamped(model: JudgeModel, tmp_path: Path) -> None:
    model.reply = lambda ids, asked: scores(dict(zip(ids, (-3.0, 0.25, 7.0), strict=True)))
    [(scored, _)] = score(settings(model), tmp_path, group(3))
    assert rewards(scored) == [0.0, 0.25, 1.0]


@pytest.mark.parametrize(
    "bad",
    [
        one_short,
        prose,
        lambda ids, asked: scores(dict.fromkeys([*ids[:-1], "9"], 0.5)),
        lambda ids, asked: by_id(ids).replace('"2"', '"1"'),
        lambda ids, asked: '{"scores": "all fine"}',
        lambda ids, asked: "",
        lambda ids, asked: 429,
        lambda ids, asked: 503,
    ],
    ids=[
        "short",
        "prose",
        "unknown id",
        "twice the same id",
        "wrong form",
        "empty",
        "too many requests",
        "unavailable",
    ],
)
def test_a_reply_that_cannot_be_used_is_asked_for_again_and_then_given_up(
    model: JudgeModel, tmp_path: Path, bad: Any
) -> None:
    replies = iter([bad, bad, by_id])
    model.reply = lambda ids, asked: next(replies)(ids, asked)
    [(scored, use)] = score(settings(model), tmp_path / "a", group())
    assert rewards(scored)[-1] == 1.0 and (use.requests, use.problem) == (3, "")

    model.reply = bad
    [(scored, use)] = score(settings(model), tmp_path / "b", group())
    assert scored is None and use.requests == 6 and use.problem and "\n" not in use.problem
    assert not list(tmp_path.glob("b/*"))


def test_waits_longer_before_each_further_request(
    model: JudgeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    waited: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        waited.append(seconds)
        await sleep(seconds)

    def busy(ids: list[str], text: str) -> int:
        asked.append(time.monotonic())
        return 503

    model.reply = busy
    monkeypatch.setattr(asyncio, "sleep", recorded)
    monkeypatch.setattr("training.llm_client.ATTEMPTS", 3)
    monkeypatch.setattr("training.llm_client.BACKOFF", 0.1)
    score(settings(model), tmp_path, group(2))
    assert [seconds for seconds in waited if seconds] == [0.1, 0.2]
    assert asked[1] - asked[0] >= 0.1 and asked[2] - asked[1] >= 0.2


def test_a_judge_that_hangs_is_given_up(model: JudgeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.llm_client.ATTEMPTS", 2)
    monkeypatch.setattr("training.scoring.ruler.REQUEST_TIMEOUT", 0.2)
    model.seconds = 60  # then it would give usable scores
    [(scored, use)] = score(settings(model), tmp_path, group(2))
    assert scored is None and use.problem and use.requests == 2


@pytest.mark.parametrize(
    ("status", "named"), [(401, "refuses the key"), (404, "ruler_model"), (400, "does not accept")]
)
def test_a_refusal_is_not_asked_again(model: JudgeModel, tmp_path: Path, status: int, named: str) -> None:
    model.reply = lambda ids, asked: status
    with pytest.raises(BadInput, match=named):
        score(settings(model), tmp_path, group(2))
    assert len(model.requests) == 1


TOO_LONG = "This model's maximum context length is 8192 tokens."


def test_a_group_that_is_too_long_for_the_judge_is_left_out(model: JudgeModel, tmp_path: Path) -> None:
    model.reply = lambda ids, asked: (400, TOO_LONG) if "a long story" in asked else by_id(ids)
    long, short = score(settings(model), tmp_path, group(2, question="a long story"), group(2))
    assert long[0] is None and long[1].requests == 1 and "ContextWindowExceeded" in long[1].problem
    assert rewards(short[0]) == [0.0, 1.0]


def test_the_same_group_is_asked_about_once(model: JudgeModel, tmp_path: Path) -> None:
    [(first, _)] = score(settings(model), tmp_path, group())
    [(again, use)] = score(settings(model), tmp_path, group())
    assert rewards(again) == rewards(first) and (use.requests, use.cached) == (0, 1)
    assert len(model.requests) == 1

    rubric = tmp_path / "rubric.txt"
    rubric.write_text("- shorter is better")
    others = [
        {"ruler_rubric": str(rubric)},
        {"extra_litellm_params": {"temperature": 0.2}},
        {"ruler_model": "openai/other"},
    ]
    for number, change in enumerate(others, start=2):
        score(settings(model, **change), tmp_path, group())
        assert len(model.requests) == number
    score(settings(model), tmp_path, group(question="when?"))
    assert len(model.requests) == 5

    for file in tmp_path.glob("*.json"):
        file.write_text("torn")
    [(again, use)] = score(settings(model), tmp_path, group())
    assert rewards(again) == rewards(first) and use.requests == 1


def test_own_rubric_and_parameters_reach_the_judge(
    model: JudgeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rubric = tmp_path / "rubric.txt"
    rubric.write_text("- a cited mail is worth more than an adjective\n")
    score(
        settings(model, ruler_rubric=str(rubric), extra_litellm_params={"temperature": 0.25}),
        tmp_path / "cache",
        group(2),
    )
    [request] = model.requests
    assert "- a cited mail is worth more than an adjective" in request["messages"][0]["content"]
    assert "significantly higher score" not in request["messages"][0]["content"]
    assert request["temperature"] == 0.25
    before = scoring_sources(settings(model, ruler_rubric=str(rubric)))
    rubric.write_text("- brevity\n")
    after = scoring_sources(settings(model, ruler_rubric=str(rubric)))
    assert list(before) == ["ruler_rubric"] and before != after
    monkeypatch.setenv("HOME", str(tmp_path))
    assert scoring_sources(settings(model, ruler_rubric="~/rubric.txt")) == after


def test_cost_is_counted_where_the_price_is_known(model: JudgeModel, tmp_path: Path) -> None:
    [(_, priced)] = score(settings(model, ruler_model="openai/gpt-4.1"), tmp_path, group(2))
    assert priced.cost == pytest.approx(1000 * 2e-6 + 100 * 8e-6)
    [(_, unknown)] = score(settings(model), tmp_path, group(2))
    assert unknown.cost == 0.0
    model.reply = prose
    [(_, wasted)] = score(settings(model, ruler_model="openai/gpt-4.1"), tmp_path, group(3))
    assert wasted.cost == pytest.approx(6 * priced.cost)


def test_groups_are_judged_at_the_same_time(model: JudgeModel, tmp_path: Path) -> None:
    together = threading.Barrier(10)

    def reply(ids: list[str], asked: str) -> str:
        together.wait(timeout=300)  # breaks when the requests come one after the other
        return by_id(ids)

    model.reply = reply
    scored = score(settings(model), tmp_path, *(group(2, f"question {number}") for number in range(10)))
    assert all(found is not None for found, _ in scored)


def longest_answer(trajectory: art.Trajectory) -> float:
    return float(len(str(trajectory.messages()[-1]["content"])))


async def by_number(trajectory: art.Trajectory) -> float:
    return trajectory.reward * 10


def not_a_number(trajectory: art.Trajectory) -> str:
    return "good"


def mistaken(trajectory: art.Trajectory) -> float:
    return float(trajectory.metrics["no such figure"])


def nan(trajectory: art.Trajectory) -> float:
    return float("nan")


HERE = "test_scoring"


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module under a plain name, as a user's own would be."""
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


def test_a_users_reward_function(importable: None, tmp_path: Path) -> None:
    rules = TrainerSettings(scoring="custom", reward_function=f"{HERE}:by_number")
    [(scored, use)] = score(rules, tmp_path, group(3))
    assert rewards(scored) == [0.0, 10.0, 20.0] and use == JudgeUse()
    source = Path(__file__).read_text()  # what the function calls counts too
    assert scoring_sources(rules) == {"reward_function": hashlib.sha256(source.encode()).hexdigest()}
    for name in ("not_a_number", "nan"):
        with pytest.raises(BadInput, match="not a finite number"):
            score(TrainerSettings(scoring="custom", reward_function=f"{HERE}:{name}"), tmp_path, group(2))
    with pytest.raises(
        BadInput, match=r"^reward_function: mistaken raised KeyError: 'no such figure' \(.*test_scorer.py, line"
    ):
        score(TrainerSettings(scoring="custom", reward_function=f"{HERE}:mistaken"), tmp_path, group(2))


def test_a_blend_is_the_weighted_sum(importable: None, model: JudgeModel, tmp_path: Path) -> None:
    weights = {"ruler": 1.0, "verifiable": 0.5, "custom": 0.1}
    rules = settings(model, scoring="blend", blend_weights=weights, reward_function=f"{HERE}:longest_answer")
    [(scored, _)] = score(rules, tmp_path, group(3))
    assert rewards(scored) == pytest.approx([0.8, 0.5 + 0.5 + 0.8, 1.0 + 1.0 + 0.8])
    assert scored.trajectories[1].metrics == {"verifiable_reward": 1.0, "ruler_reward": 0.5, "custom_reward": 8.0}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ruler_model": "openai/o4-mini"}, "OPENAI_API_KEY"),
        ({"ruler_model": "anthropic/claude-3-5-haiku-20241022"}, "ANTHROPIC_API_KEY"),
        ({"ruler_model": "nobody"}, "provider/model"),
        ({"ruler_rubric": "absent.txt"}, "absent.txt cannot be read: No such file"),
        ({"scoring": "custom"}, "needs reward_function"),
        ({"scoring": "custom", "reward_function": "rewards"}, "package.module:name"),
        ({"scoring": "custom", "reward_function": "no_such_module:f"}, "no_such_module cannot be imported"),
        ({"scoring": "custom", "reward_function": "json:absent"}, "has no function absent"),
        ({"scoring": "custom", "reward_function": "json:decoder"}, "has no function decoder"),
        ({"scoring": "verifiable", "reward_function": "json:loads"}, "would not be asked"),
        ({"scoring": "blend", "blend_weights": {}}, "blend_weights is empty"),
        ({"min_reward_std": 0.5}, "min_reward_std=0.5: RULER's scores are between 0 and 1"),
        (
            {"ruler_api_base": "http://127.0.0.1:9", "ruler_model": "openai/own", "stop_cost": 5},
            "no price of openai/own",
        ),
        ({"extra_litellm_params": {"response_format": "text"}}, "'response_format' is set by ruler_model"),
    ],
)
def test_bad_input_is_named_in_one_line(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named) as caught:
        require_scoring(TrainerSettings(**{"scoring": "ruler", **changes}))
    assert "\n" not in str(caught.value)


def test_a_self_hosted_server_needs_no_key_and_gets_one_that_is_set(
    model: JudgeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_scoring(settings(model))
    score(settings(model), tmp_path / "without", group(2))
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    require_scoring(TrainerSettings(scoring="ruler"))
    score(settings(model), tmp_path / "with", group(2))
    assert model.keys == ["Bearer none", "Bearer mine"]


def test_rollouts_with_additional_histories_are_dropped_with_a_reason(model: JudgeModel, tmp_path: Path) -> None:
    odd = group(2)
    odd.trajectories[0].additional_histories.append(art.trajectories.History(messages_and_choices=[]))
    scores_of_odd, use = asyncio.run(RulerJudge(settings(model), tmp_path).compare(odd))
    assert scores_of_odd is None and "additional histories" in use.problem and not model.requests
    assert json.loads(use.model_dump_json())["requests"] == 0
