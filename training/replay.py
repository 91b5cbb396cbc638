"""Replay of the groups of the last steps (RePO, arXiv 2506.09340).

A replayed group keeps its rewards, their mean and standard deviation, and the log-probabilities recorded at sampling.
ART's loss weighs each token by the clipped ratio of its current probability to the recorded one (`art.loss`), which
corrects for the older policy.

Each step has a file, written before its history row, so that a resumed run replays the same groups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import art
from art.trajectories import History
from openai.types.chat.chat_completion import Choice

from training.files import write_text

REPLAY = "replay"


class ReplayBuffer:
    """The groups used in the updates of the last `steps` steps."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder = folder
        self._steps = steps

    def recall(self, step: int) -> list[art.TrajectoryGroup]:
        """Return the groups to replay in step `step`, oldest first."""
        files = [self._file(earlier) for earlier in range(max(1, step - self._steps), step)]
        return [_group(stored) for file in files if file.is_file() for stored in json.loads(file.read_text("utf-8"))]

    def remember(self, step: int, groups: Sequence[art.TrajectoryGroup], resumable: int) -> None:
        """Write the groups of step `step`, all or nothing, and delete files that no step after `resumable` needs.

        `resumable` is the step after which the run continues if its newest checkpoint is damaged.
        """
        if not self._steps:
            return
        write_text(self._file(step), json.dumps([[_stored(t) for t in group.trajectories] for group in groups]))
        for file in self._folder.glob("*.json"):
            if int(file.stem) <= resumable - self._steps:
                file.unlink()

    def _file(self, step: int) -> Path:
        return self._folder / f"{step:06d}.json"


def _stored(trajectory: art.Trajectory) -> dict[str, Any]:
    # pydantic's own dump would restore a `Choice` as a dict, because messages are a union of dicts there.
    return {
        **trajectory.model_dump(mode="json", include={"reward", "metrics", "metadata", "tools"}),
        "turns": _turns(trajectory.messages_and_choices),
        "additional": [
            {"turns": _turns(h.messages_and_choices), "tools": h.tools} for h in trajectory.additional_histories
        ],
    }


def _turns(messages_and_choices: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {"choice": turn.model_dump(mode="json")} if isinstance(turn, Choice) else {"message": turn}
        for turn in messages_and_choices
    ]


def _group(stored: list[dict[str, Any]]) -> art.TrajectoryGroup:
    return art.TrajectoryGroup(
        [
            art.Trajectory(
                messages_and_choices=_messages_and_choices(one["turns"]),
                tools=one["tools"],
                additional_histories=[
                    History(messages_and_choices=_messages_and_choices(history["turns"]), tools=history["tools"])
                    for history in one["additional"]
                ],
                reward=one["reward"],
                metrics=one["metrics"],
                metadata=one["metadata"],
            )
            for one in stored
        ]
    )


def _messages_and_choices(turns: Sequence[dict[str, Any]]) -> list[Any]:
    return [Choice.model_validate(turn["choice"]) if "choice" in turn else turn["message"] for turn in turns]
