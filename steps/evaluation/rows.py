"""The rows of an evaluation, of every task: one policy after another is asked the held-out scenarios."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from reports.console import counter, say
from steps.evaluation.journal import finish_journal
from steps.interruption import run_cancellable
from steps.published_model import base_model_files
from training.backends.serving import open_policy_server
from training.checkpoint import Checkpoint
from training.plugin import Attempt

MOST_ATTEMPTS = 3
"""Maximum attempts at a scenario that fails with an error."""

Predict = Callable[[Any], Awaitable[Prediction | None]]
"""Gives the prediction of a policy for a scenario, also of one that failed; None if it makes no attempt at it."""


class Rows:
    """Asks for predictions, at most `concurrent` at a time. Those in `journal` are not asked for again."""

    def __init__(self, journal: AnswerJournal, *, concurrent: int) -> None:
        self._journal = journal
        self._slots = asyncio.Semaphore(concurrent)

    async def of(
        self,
        name: str,
        scenarios: Sequence[Any],
        predict: Predict,
        *,
        shown: str | None = None,
        sample: int = 0,
        kept: bool = True,
    ) -> list[Prediction]:
        """Return the predictions of the policy `name`, numbered `sample`, in the order of `scenarios`.

        Scenarios that ended in an error are asked again after all others, up to `MOST_ATTEMPTS` times in total. `shown` is the
        label of the progress bar. Predictions that take no time and cost nothing are not `kept` in the journal.
        """
        predictions: dict[str, Prediction | None] = {}

        async def one(scenario: Any) -> None:
            prediction = self._journal.find(name, sample, scenario.id)
            if prediction is None:
                async with self._slots:
                    prediction = await predict(scenario)
                if prediction is not None:
                    prediction = _with_cost_of(predictions.get(scenario.id), prediction)
                    prediction = prediction.model_copy(update={"sample": sample})
                    if kept:
                        self._journal.add(prediction)
            if scenario.id not in predictions:
                advance.one()
            predictions[scenario.id] = prediction

        with counter(shown or name.replace("_", " "), total=len(scenarios)) as advance:
            asked = scenarios
            for _ in range(MOST_ATTEMPTS):
                await asyncio.gather(*map(one, asked))
                failed = {id for id, prediction in predictions.items() if prediction and prediction.error is not None}
                asked = [scenario for scenario in scenarios if scenario.id in failed]
        found = (predictions[scenario.id] for scenario in scenarios)
        return [prediction for prediction in found if prediction is not None]


def predicting(
    name: str, described: Callable[[Any], Mapping[str, str]], play: Callable[[Any], Awaitable[Attempt | None]]
) -> Predict:
    """Return what makes predictions of a policy's attempts. A failure of a server is an error, never a wrong outcome."""

    async def predict(scenario: Any) -> Prediction | None:
        try:
            attempt = await play(scenario)
        except Exception as error:  # any failure becomes this scenario's result, with its name and message
            failed = {"outcome": "error", "error": type(error).__name__, "reason": str(error)}
            return Prediction(policy=name, **described(scenario), **failed)
        return None if attempt is None else Prediction(policy=name, **described(scenario), **attempt.model_dump())

    return predict


def ask_rows(
    ask: Callable[[Rows, str], Coroutine[Any, Any, list[Prediction]]],
    checkpoint: Checkpoint,
    base: Mapping[str, str],
    adapters: Mapping[str, Path],
    journal: AnswerJournal,
    *,
    output: str,
) -> list[Prediction]:
    """Return the predictions of `ask`, which gets the base URL of a server of `adapters` and their base model.

    The journal is finished with the artifact `output` of the current step.

    Raises:
        BadInput: the base model is unavailable, or differs from the one that `checkpoint` was trained from.
    """
    trained_with = checkpoint.manifest.config
    files = base_model_files(base["source"], base["checksum"], progress=say)
    checkpoint.require_base(files)
    rows = Rows(journal, concurrent=trained_with["max_concurrent"])
    with open_policy_server(files.path, adapters, trained_with, warn=partial(say, alarm=True)) as server:
        predictions = run_cancellable(ask(rows, server.base_url))
    finish_journal(journal, predictions, output=output)
    return predictions


def also_as_trained(predictions: list[Prediction], adapters: Mapping[str, Path]) -> list[Prediction]:
    """Return the predictions of the row `trained` if the best checkpoint is the one before GRPO, which was asked once."""
    if "trained" in adapters:
        return []
    [before] = adapters
    say(f"the best checkpoint of the run is the {before.replace('_', ' ')}: asked once, as both")
    return [p.model_copy(update={"policy": "trained"}) for p in predictions if p.policy == before]


def _with_cost_of(failed: Prediction | None, prediction: Prediction) -> Prediction:
    """Return the prediction with the cost of a failed attempt at the same scenario added."""
    if failed is None:
        return prediction
    costs = {
        name: _sum(getattr(failed, name), getattr(prediction, name)) for name in ("cost", "judge_cost", "judge_tokens")
    }
    return prediction.model_copy(update=costs)


def _sum(first: float | None, second: float | None) -> float | None:
    return second if first is None else first + (second or 0)
