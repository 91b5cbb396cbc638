"""How often a policy beats the one that its run started from, on held-out questions and by the judge: needs no references."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import art
from pydantic import BaseModel

from training.errors import BadInput
from training.judge import JudgeUse, RulerJudge
from training.settings import TrainerSettings

START_FILE = "validation_start.json"


class _Recorded(BaseModel):
    """A rollout as far as the judge reads it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


class WinRate:
    """Compares rollouts with those of the start, which are kept in the run's folder for when the run goes on later."""

    def __init__(self, settings: TrainerSettings, model_dir: Path, judge_cache: Path) -> None:
        self._judge = RulerJudge(settings, judge_cache)
        self._slots = asyncio.Semaphore(settings.max_concurrent)
        self._file = model_dir / START_FILE

    def begin(self, rollouts: Sequence[art.Trajectory | None]) -> None:
        """Keeps the start's rollouts, one per question; None where it failed."""
        recorded = [
            _Recorded.model_validate({"messages": rollout.messages(), "tools": rollout.tools}).model_dump()
            if rollout
            else None
            for rollout in rollouts
        ]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        beside.write_text(json.dumps(recorded), encoding="utf-8")
        os.replace(beside, self._file)

    async def against_start(self, rollouts: Sequence[art.Trajectory | None]) -> tuple[float | None, int, JudgeUse]:
        """Mean over questions of win 1, tie 0.5, loss 0, each the mean of both orders; the questions that could not be compared.

        Judges prefer the answer in a certain place, hence both orders.

        Raises:
            BadInput: the start's rollouts are gone, or the judge refuses the key or the request.
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
                f"{self._file} is of {len(recorded)} questions instead of {count}: remove the run folder to start again"
            )
        return [
            art.Trajectory(messages_and_choices=entry.messages, tools=entry.tools, reward=0.0) if entry else None
            for entry in recorded
        ]
