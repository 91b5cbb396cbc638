"""The agreement of a judge with the verifiable reward: selection of groups and rank correlation."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.judge_agreement import agreement, recorded_groups, spearman
from training.errors import BadInput
from training.scoring.ruler import JudgeUse


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [9, 7, 5, 3]) == pytest.approx(-1)
    assert spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    assert spearman([1, 1, 2, 2], [1, 2, 3, 3]) == pytest.approx(0.9428, abs=1e-4), "ties have their mean rank"
    assert spearman([1, 2, 3, 4], [5, 5, 5, 5]) == 0


def test_groups_are_those_with_different_rewards_and_rollouts_that_differ_most(tmp_path: Path) -> None:
    rewards = {0: [1, 1, 1, 1], 1: [0, 1, 2, 3, 4, 5, 6], 2: [0, 1, 2]}
    rows = [
        {
            "group_index": group,
            "reward": 9.0,
            "metrics": json.dumps({"verifiable_reward": reward}),
            "tools": None,
            "messages": [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": f"{reward}", "tool_call_id": None},
            ],
        }
        for group, of_group in rewards.items()
        for reward in of_group
    ]
    folder = tmp_path / "trajectories" / "train"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "0001.parquet")
    (group,) = recorded_groups(tmp_path, 5)
    assert sorted(trajectory.reward for trajectory in group.trajectories) == [0, 2, 4, 6]
    with pytest.raises(BadInput, match="no recorded group"):
        recorded_groups(tmp_path / "elsewhere", 5)


def test_groups_without_scores_are_no_disagreement_but_scores_without_spread_are() -> None:
    once = JudgeUse(requests=1, seconds=2.0)
    figures = agreement(
        [([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], once), ([1, 2, 3, 4], [0.5] * 4, once), ([1, 2], None, once)]
    )
    assert (figures["spearman"], figures["low"], figures["high"]) == (0.5, 0.0, 1.0)
    assert (figures["judged"], figures["without_spread"], figures["requests"], figures["seconds_per_request"]) == (
        2,
        1,
        3,
        2.0,
    )
    assert agreement([([1, 2], None, once)])["spearman"] is None
