"""Run every policy, the rows without one, and the version in production on a task's held-out scenarios."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from zenml import step
from zenml.config.cache_policy import CachePolicy

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from configs.schema import EvaluationConfig
from materializers.json_lines import JsonLinesMaterializer
from reports.console import say
from steps.artifact_names import PREDICTIONS, PRODUCTION_PREDICTIONS
from steps.caching import keep_errors_out_of_cache
from steps.evaluation.ask_production import PRODUCTION
from steps.evaluation.journal import TASK_CODE, finish_journal, open_journal
from steps.evaluation.rows import Rows, also_as_trained, predicting
from steps.evaluation.run_inference import adapters_to_ask, question_limit
from steps.interruption import run_cancellable
from steps.model_registry import find_checkpoint
from steps.project import source_files
from steps.published_model import base_model_files
from tasks import load_plugin
from training.backends.serving import open_policy_server
from training.checkpoint import Checkpoint
from training.plugin import EvaluatedTask
from training.task import Policy

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

    async def ask(opened: EvaluatedTask, held_out: Sequence[Any], rows: Rows, base_url: str) -> list[Prediction]:
        predictions: list[Prediction] = []
        for name, play in opened.others().items():
            predictions += await rows.of(name, held_out, predicting(name, opened.described, play), kept=False)
        policies = {name: (_greedy(name, base_url, opened), False) for name in ("base", *adapters)}
        if config.baseline_model is not None:
            policies[config.baseline_model] = (_hosted(config.baseline_model, config.baseline_api_base, opened), True)
        for name, (policy, hosted) in policies.items():
            predict = predicting(name, opened.described, partial(opened.attempt, policy, hosted=hosted))
            predictions += await rows.of(name, held_out[: question_limit(config, name, adapters)], predict)
        return [*predictions, *also_as_trained(predictions, adapters)]

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

    async def ask(opened: EvaluatedTask, held_out: Sequence[Any], rows: Rows, base_url: str) -> list[Prediction]:
        play = partial(opened.attempt, _greedy(PRODUCTION, base_url, opened), hosted=False)
        return await rows.of(PRODUCTION, held_out, predicting(PRODUCTION, opened.described, play))

    predictions = _asked(config, task, settings, base, checkpoint, {PRODUCTION: checkpoint.path}, journal, ask)
    finish_journal(journal, predictions, output=PRODUCTION_PREDICTIONS)
    return predictions


def _greedy(name: str, base_url: str, task: EvaluatedTask) -> Policy:
    return Policy(base_url=base_url, model=name, temperature=0.0, max_tokens=task.max_tokens)


def _hosted(name: str, base_url: str | None, task: EvaluatedTask) -> Policy:
    """Return a model behind another OpenAI-compatible server than ours."""
    return Policy(
        base_url=base_url or "https://api.openai.com/v1",
        model=name.removeprefix("openai/"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        temperature=0.0,
        max_tokens=max(1024, task.max_tokens),
    )


def _asked(
    config: EvaluationConfig,
    task: str,
    settings: dict[str, Any],
    base: dict[str, str],
    checkpoint: Checkpoint,
    adapters: dict[str, Path],
    journal: AnswerJournal,
    ask: Callable[[EvaluatedTask, Sequence[Any], Rows, str], Coroutine[Any, Any, list[Prediction]]],
) -> list[Prediction]:
    """Return the predictions of `ask`, given the task and a server of the base model and `adapters`."""
    plugin, trained_with = load_plugin(task), checkpoint.manifest.config
    files = base_model_files(base["source"], base["checksum"], progress=say)
    checkpoint.require_base(files)
    with plugin.opened(plugin.settings.model_validate(settings), trained_with, say) as opened:
        held_out = [*opened.test_scenarios()]
        random.Random(0).shuffle(held_out)
        rows = Rows(journal, concurrent=trained_with["max_concurrent"])
        with open_policy_server(files.path, adapters, trained_with) as server:
            predictions = run_cancellable(ask(opened, held_out[: config.eval_limit], rows, server.base_url))
    keep_errors_out_of_cache(predictions)
    return predictions
