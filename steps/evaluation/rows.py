"""The rows of an evaluation: one policy after another plays the held-out scenarios."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from reports.console import counter
from training.plugin import Attempt

ATTEMPTS = 3
"""Maximum attempts at a scenario when a server fails."""


class Rows:
    """Plays `scenarios`, at most `concurrent` at a time. `described` returns what a report shows of one.

    Episodes that `journal` has are not played again.
    """

    def __init__(
        self,
        scenarios: Sequence[Any],
        described: Callable[[Any], dict[str, str]],
        journal: AnswerJournal,
        *,
        concurrent: int,
    ) -> None:
        self._scenarios, self._described, self._journal = scenarios, described, journal
        self._slots = asyncio.Semaphore(concurrent)

    async def of(
        self,
        name: str,
        play: Callable[[Any], Awaitable[Attempt | None]],
        *,
        limit: int | None = None,
        kept: bool = False,
    ) -> list[Prediction]:
        """Return a prediction for each scenario that `play` makes an attempt at, or the first `limit`.

        `kept`: they go to the journal, because they cost time.
        """
        asked = self._scenarios[:limit]
        with counter(name.replace("_", " "), total=len(asked)) as advance:

            async def one(scenario: Any) -> Prediction | None:
                async with self._slots:
                    described = self._described(scenario)
                    prediction = self._journal.find(name, 0, described["scenario_id"])
                    if prediction is None:
                        prediction = await _predict(name, described, partial(play, scenario))
                        if kept and prediction is not None:
                            self._journal.add(prediction)
                advance.one()
                return prediction

            found = await asyncio.gather(*map(one, asked))
        return [prediction for prediction in found if prediction is not None]


async def _predict(
    policy: str, described: dict[str, str], play: Callable[[], Awaitable[Attempt | None]]
) -> Prediction | None:
    """Return the prediction of a policy for one scenario, None if it made no attempt.

    A failure of a server is an error, never a wrong outcome.
    """
    for attempt in range(ATTEMPTS):
        try:
            ended = await play()
        except Exception as error:  # any failure becomes this scenario's result, with its name and message
            if attempt + 1 < ATTEMPTS:
                continue
            failed = {"outcome": "error", "error": type(error).__name__, "reason": str(error)}
            return Prediction(policy=policy, **described, **failed)
        break
    return None if ended is None else Prediction(policy=policy, **described, **ended.model_dump())
