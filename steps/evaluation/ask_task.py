"""Run every policy, the rows without one, and the version in production on a task's held-out scenarios."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from zenml import step
from zenml.config.cache_policy import CachePolicy

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from configs.schema import EvaluationConfig
from materializers.json_lines import JsonLinesMaterializer
from reports.console import counter, say
from steps.artifact_names import PREDICTIONS, PRODUCTION_PREDICTIONS
from steps.caching import keep_errors_out_of_cache
from steps.evaluation.ask_production import PRODUCTION
from steps.evaluation.journal import TASK_CODE, finish_journal, open_journal
from steps.evaluation.run_inference import adapters_to_ask, question_limit
from steps.interruption import run_cancellable
from steps.model_registry import find_checkpoint
from steps.project import source_files
from steps.published_model import base_model_files
from tasks import load_plugin
from training.backends.serving import open_policy_server
from training.checkpoint import Checkpoint
from training.plugin import Attempt, EvaluatedTask
from training.task import Policy

ATTEMPTS = 3
"""Maximum attempts at a scenario when a server fails."""
_CODE = CachePolicy(file_dependencies=source_files(*TASK_CODE))


@step(name="run_inference", output_materializers={PREDICTIONS: JsonLinesMaterializer}, cache_policy=_CODE)
def ask_task(
    config: EvaluationConfig,
    task: str,
    settings: dict[str, Any],
    identity: str,
    base: dict[str, str],
    checkpoint: Checkpoint,
    warm_start: Checkpoint | None = None,
) -> Annotated[list[Prediction], PREDICTIONS]:
    """Return greedy episodes of the untouched base, the warm start, the trained policy and a `baseline_model`, and the
    rows that ask no policy. `identity` is a digest of the data, a part of the cache key.

    The episodes of an earlier, interrupted run of the same evaluation are not played again.
    """
    adapters = adapters_to_ask(checkpoint, warm_start)
    journal = open_journal(
        config, code=TASK_CODE, task=task, settings=settings, identity=identity, base=base["checksum"]
    )

    async def ask(rows: _Rows, base_url: str) -> list[Prediction]:
        predictions = [row for name, play in rows.task.others().items() for row in await rows.of(name, play)]
        for name in ("base", *adapters):
            predictions += await rows.asked(name, base_url, limit=question_limit(config, name, adapters))
        if config.baseline_model is not None:
            predictions += await rows.hosted(config.baseline_model, config.baseline_api_base)
        if "trained" not in adapters:
            say("the best checkpoint of the run is the warm start: asked once, as both")
            same = [prediction for prediction in predictions if prediction.policy in adapters]
            predictions += [prediction.model_copy(update={"policy": "trained"}) for prediction in same]
        return predictions

    predictions = _asked(config, task, settings, base, checkpoint, adapters, journal, ask)
    finish_journal(journal, predictions, output=PREDICTIONS)
    return predictions


# A separate step, so that its episodes stay cached until production or the scenarios change.
@step(name="ask_production", output_materializers={PRODUCTION_PREDICTIONS: JsonLinesMaterializer}, cache_policy=_CODE)
def ask_task_production(
    config: EvaluationConfig, task: str, settings: dict[str, Any], identity: str, production: str
) -> Annotated[list[Prediction], PRODUCTION_PREDICTIONS]:
    """Return greedy episodes of the version in production, with its own base model and limits.

    `production` is the id of its checkpoint; without one there are none.
    """
    if not production:
        return []
    checkpoint = find_checkpoint(production).checkpoint
    manifest = checkpoint.manifest
    base = {"source": manifest.base_model_source, "checksum": manifest.base_model_checksum}
    of = {"task": task, "settings": settings, "identity": identity, "production": production}
    journal = open_journal(config, code=TASK_CODE, **of)

    async def ask(rows: _Rows, base_url: str) -> list[Prediction]:
        return await rows.asked(PRODUCTION, base_url)

    predictions = _asked(config, task, settings, base, checkpoint, {PRODUCTION: checkpoint.path}, journal, ask)
    finish_journal(journal, predictions, output=PRODUCTION_PREDICTIONS)
    return predictions


class _Rows:
    """Runs one policy after another on the held-out scenarios."""

    def __init__(self, task: EvaluatedTask, scenarios: list[Any], journal: AnswerJournal, *, concurrent: int) -> None:
        self.task, self._scenarios, self._journal = task, scenarios, journal
        self._slots = asyncio.Semaphore(concurrent)

    async def asked(self, name: str, base_url: str, *, limit: int | None = None) -> list[Prediction]:
        """Return the prediction of the named policy for each scenario, or the first `limit`."""
        policy = Policy(base_url=base_url, model=name, temperature=0.0, max_tokens=self.task.max_tokens)
        return await self.of(name, partial(self.task.attempt, policy, hosted=False), limit=limit, kept=True)

    async def hosted(self, name: str, base_url: str | None) -> list[Prediction]:
        """Return the predictions of a model behind another OpenAI-compatible server than ours."""
        policy = Policy(
            base_url=base_url or "https://api.openai.com/v1",
            model=name.removeprefix("openai/"),
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            temperature=0.0,
            max_tokens=max(1024, self.task.max_tokens),
        )
        return await self.of(name, partial(self.task.attempt, policy, hosted=True), kept=True)

    async def of(
        self,
        name: str,
        play: Callable[[Any], Awaitable[Attempt | None]],
        *,
        limit: int | None = None,
        kept: bool = False,
    ) -> list[Prediction]:
        """Return the prediction for each scenario that the given function plays; `kept`: in the journal, because it costs time."""
        asked = self._scenarios[:limit]
        with counter(f"{name.replace('_', ' ')}", total=len(asked)) as advance:

            async def one(scenario: Any) -> Prediction | None:
                async with self._slots:
                    described = self.task.described(scenario)
                    prediction = self._journal.find(name, 0, described["scenario_id"])
                    if prediction is None:
                        prediction = await predict(name, described, partial(play, scenario))
                        if kept and prediction is not None:
                            self._journal.add(prediction)
                advance.one()
                return prediction

            found = await asyncio.gather(*map(one, asked))
        return [prediction for prediction in found if prediction is not None]


async def predict(
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


def _asked(
    config: EvaluationConfig,
    task: str,
    settings: dict[str, Any],
    base: dict[str, str],
    checkpoint: Checkpoint,
    adapters: dict[str, Path],
    journal: AnswerJournal,
    ask: Callable[[_Rows, str], Coroutine[Any, Any, list[Prediction]]],
) -> list[Prediction]:
    """Return the predictions of `ask`, given the task and a server of the base model and `adapters`."""
    plugin, trained_with = load_plugin(task), checkpoint.manifest.config
    files = base_model_files(base["source"], base["checksum"], progress=say)
    checkpoint.require_base(files)
    with plugin.opened(plugin.settings.model_validate(settings), trained_with, say) as opened:
        held_out = [*opened.test_scenarios()]
        random.Random(0).shuffle(held_out)
        rows = _Rows(opened, held_out[: config.eval_limit], journal, concurrent=trained_with["max_concurrent"])
        with open_policy_server(files.path, adapters, trained_with) as server:
            predictions = run_cancellable(ask(rows, server.base_url))
    keep_errors_out_of_cache(predictions)
    return predictions
