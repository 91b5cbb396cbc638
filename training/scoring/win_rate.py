"""Win rate of a policy against the initial one of its run, by the judge on held-out questions. Needs no references."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import art
from pydantic import BaseModel

from training.errors import BadInput
from training.files import write_text
from training.scoring.ruler import JudgeUse, RulerJudge
from training.settings import TrainerSettings

START_FILE = "validation_start.json"


class _Recorded(BaseModel):
    """The part of a rollout that the judge reads."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


class WinRate:
    """Compares rollouts with those of the initial policy, which stay in the run's folder for resumed runs."""

    def __init__(self, settings: TrainerSettings, model_dir: Path, judge_cache: Path) -> None:
        self._judge = RulerJudge(settings, judge_cache)
        self._slots = asyncio.Semaphore(settings.max_concurrent)
        self._file = model_dir / START_FILE

    def begin(self, rollouts: Sequence[art.Trajectory | None]) -> None:
        """Store the rollouts of the initial policy, one per question; None where it failed."""
        recorded = [
            _Recorded.model_validate({"messages": rollout.messages(), "tools": rollout.tools}).model_dump()
            if rollout
            else None
            for rollout in rollouts
        ]
        write_text(self._file, json.dumps(recorded))

    async def against_start(self, rollouts: Sequence[art.Trajectory | None]) -> tuple[float | None, int, JudgeUse]:
        """Return the win rate, the number of questions without a comparison, and the use of the judge.

        The win rate is the mean over questions of 1 for a win, 0.5 for a tie and 0 for a loss. The judge sees each pair
        in both orders, because judges prefer a position.

        Raises:
            BadInput: the initial rollouts are missing, or the judge refuses the key or the request.
        """
        start = self._start(len(rollouts))
        pairs = [(ours, theirs) for ours, theirs in zip(rollouts, start, strict=True) if ours and theirs]
        results = await asyncio.gather(*(self._compare(ours, theirs) for ours, theirs in pairs))
        values = [value for value, _ in results if value is not None]
        use = sum((used for _, used in results), JudgeUse())
        return (statistics.fmean(values) if values else None), len(rollouts) - len(values), use

    async def _compare(self, ours: art.Trajectory, theirs: art.Trajectory) -> tuple[float | None, JudgeUse]:
        async with self._slots:
            first, first_use = await self._judge.compare(art.TrajectoryGroup([ours, theirs]))
            second, second_use = await self._judge.compare(art.TrajectoryGroup([theirs, ours]))
        use = first_use + second_use
        if first is None or second is None:
            return None, use
        margins = (first[0].score - first[1].score, second[1].score - second[0].score)
        return statistics.fmean(0.5 if margin == 0 else float(margin > 0) for margin in margins), use

    def _start(self, count: int) -> list[art.Trajectory | None]:
        try:
            entries = json.loads(self._file.read_text(encoding="utf-8"))
            recorded = [_Recorded.model_validate(entry) if entry else None for entry in entries]
        except (OSError, ValueError) as error:
            raise BadInput(f"{self._file} is missing or damaged: remove the run folder to start again") from error
        if len(recorded) != count:
            raise BadInput(
                f"{self._file} covers {len(recorded)} questions instead of {count}: remove the run folder to start again"
            )
        return [
            art.Trajectory(messages_and_choices=entry.messages, tools=entry.tools, reward=0.0) if entry else None
            for entry in recorded
        ]
