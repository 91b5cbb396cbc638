"""Compare a real LLM as RULER's judge with the verifiable reward: does it rank the rollouts of a group alike?

  python -m benchmarks.judge_agreement RUN --judge openai/NAME --api-base http://127.0.0.1:8080/v1 [--groups 16]

RUN is the folder of a training run (`outputs/.../models/NAME`), whose recorded rollouts are judged. Only groups whose
rollouts earned different verifiable rewards count, each with the four rollouts that differ most. The figure of a group
is Spearman's rank correlation, 0 if the judge scores all rollouts alike. The interval is a bootstrap over groups. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

# Otherwise LiteLLM's import waits for a price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import art
import numpy as np
import pyarrow.parquet as pq

from benchmarks.output import progress, show
from training.errors import BadInput
from training.scoring.ruler import JudgeUse, RulerJudge, require_ruler
from training.settings import TrainerSettings

ROLLOUTS = 4
RESAMPLED = 10_000


def main() -> int:
    """Judge the groups. Return the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("run", type=Path, help="folder of a training run")
    add("--judge", required=True, help="any model of LiteLLM, as provider/model")
    add("--api-base", help="base URL of a self-hosted judge")
    add("--groups", type=int, default=16, help="groups to judge (default 16)")
    add("--rubric", help="file with grading standards instead of RULER's own")
    add(
        "--cache",
        type=Path,
        default=Path("outputs/judge_agreement"),
        help="where scores are kept (default outputs/judge_agreement)",
    )
    arguments = parser.parse_args()
    try:
        settings = TrainerSettings(
            scoring="ruler",
            ruler_model=arguments.judge,
            ruler_api_base=arguments.api_base,
            ruler_rubric=arguments.rubric,
        )
        require_ruler(settings)
        groups = recorded_groups(arguments.run, arguments.groups)
        judged = asyncio.run(judge(groups, RulerJudge(settings, arguments.cache)))
    except BadInput as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    figures = agreement(judged) | {"judge": arguments.judge, "groups": len(groups)}
    names = ("spearman", "low", "high", "judged", "without_spread", "requests", "seconds_per_request")
    show(f"{arguments.judge} and the verifiable reward", ("", "figure"), [(name, figures[name]) for name in names])
    print(json.dumps(figures))
    return 0


def recorded_groups(run: Path, limit: int) -> list[art.TrajectoryGroup]:
    """Return the first `limit` groups of the run that have at least four rollouts and two different rewards.

    Raises BadInput when there is none.
    """
    groups: list[art.TrajectoryGroup] = []
    for file in sorted((run / "trajectories" / "train").glob("*.parquet")):
        played: dict[int, list[dict[str, Any]]] = {}
        for entry in pq.read_table(file, columns=["group_index", "reward", "metrics", "tools", "messages"]).to_pylist():
            played.setdefault(entry["group_index"], []).append(entry)
        for rollouts in played.values():
            rollouts.sort(key=_verifiable)
            if len(rollouts) >= ROLLOUTS and _verifiable(rollouts[0]) < _verifiable(rollouts[-1]):
                places = np.linspace(0, len(rollouts) - 1, ROLLOUTS).round().astype(int)
                # By their contents, so that a judge that prefers the first or the last one gains nothing.
                chosen = sorted((rollouts[place] for place in places), key=lambda rollout: str(rollout["messages"][2:]))
                groups.append(art.TrajectoryGroup([_trajectory(rollout) for rollout in chosen]))
    if not groups:
        raise BadInput(f"{run} has no recorded group of {ROLLOUTS} rollouts with different rewards")
    return groups[:limit]


def _verifiable(rollout: dict[str, Any]) -> float:
    return float(json.loads(rollout["metrics"] or "{}").get("verifiable_reward", rollout["reward"]))


def _trajectory(rollout: dict[str, Any]) -> art.Trajectory:
    messages = [
        {key: message[key] for key in ("role", "content", "tool_call_id") if message[key]}
        for message in rollout["messages"]
    ]
    tools = json.loads(rollout["tools"]) if rollout["tools"] else None
    return art.Trajectory(messages_and_choices=messages, tools=tools, reward=_verifiable(rollout))


async def judge(
    groups: list[art.TrajectoryGroup], ruler: RulerJudge
) -> list[tuple[list[float], list[float] | None, JudgeUse]]:
    """Return for each group the verifiable rewards, the judge's scores (`None` if it gave none), and requests, time and
    cost.
    """
    judged = []
    for number, group in enumerate(groups, start=1):
        scores, use = await ruler.compare(group)
        judged.append(
            ([t.reward for t in group.trajectories], [score.score for score in scores] if scores else None, use)
        )
        progress(f"group {number} of {len(groups)}: {judged[-1][0]} {judged[-1][1] or use.problem}")
    return judged


def agreement(judged: list[tuple[list[float], list[float] | None, JudgeUse]]) -> dict[str, Any]:
    """Mean rank correlation over the judged groups with its 95% bootstrap interval."""
    scored = [(rewards, scores) for rewards, scores, _ in judged if scores is not None]
    found = [spearman(rewards, scores) for rewards, scores in scored]
    use = sum((each for _, _, each in judged), JudgeUse())
    figures: dict[str, Any] = {"spearman": None, "low": None, "high": None}
    if found:
        means = np.random.default_rng(0).choice(found, (RESAMPLED, len(found))).mean(axis=1)
        low, high = np.quantile(means, (0.025, 0.975))
        figures = {"spearman": float(np.mean(found)), "low": float(low), "high": float(high)}
        figures = {name: round(value, 3) for name, value in figures.items()}
    return figures | {
        "judged": len(scored),
        "without_spread": sum(len(set(scores)) == 1 for _, scores in scored),
        "requests": use.requests,
        "seconds_per_request": round(use.seconds / use.requests, 1) if use.requests else None,
    }


def spearman(one: list[float], other: list[float]) -> float:
    """Return Spearman's rank correlation with ties at their mean rank, 0 if one of the two is constant."""
    ranks = [
        [sum(v < value for v in values) + sum(v <= value for v in values) for value in values]
        for values in (one, other)
    ]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(np.array(ranks, dtype=float))[0, 1])


if __name__ == "__main__":
    sys.exit(main())
