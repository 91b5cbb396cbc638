"""Run every policy, the rows without one, and the version in production on a task's held-out scenarios."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, NoReturn

from zenml import step
from zenml.config.cache_policy import CachePolicy

from agent.metrics import Prediction
from configs.schema import EvaluationConfig
from materializers.json_lines import JsonLinesMaterializer
from reports.console import say
from steps.artifact_names import PREDICTIONS, PRODUCTION_PREDICTIONS
from steps.evaluation.ask_production import PRODUCTION
from steps.evaluation.journal import TASK_CODE, open_journal
from steps.evaluation.prompted import require_own_name
from steps.evaluation.rows import Rows, also_as_trained, ask_rows, predicting
from steps.evaluation.run_inference import adapters_to_ask, question_limit
from steps.model_registry import find_checkpoint, find_manifest
from steps.project import source_files
from tasks import load_plugin, trained_settings
from training.checkpoint import Checkpoint, CheckpointManifest
from training.errors import BadInput
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

    Raises:
        BadInput: the checkpoint was trained on some of these scenarios, or `baseline_model` has the name of another row.
    """
    adapters = adapters_to_ask(checkpoint, warm_start)
    journal = open_journal(
        config, code=TASK_CODE, task=task, settings=settings, identity=identity, base=base["content"]
    )

    with _opened(config, task, settings, checkpoint) as (opened, held_out):
        if config.baseline_model is not None:
            require_own_name(config.baseline_model, opened.others())
        if trained_on := _trained_on(task, settings, checkpoint, opened, held_out):
            _refuse(task, checkpoint.manifest.name, trained_on, len(held_out))

        async def ask(rows: Rows, base_url: str) -> list[Prediction]:
            predictions: list[Prediction] = []
            for name, play in opened.others().items():
                predictions += await rows.of(name, held_out, predicting(name, opened.described, play), kept=False)
            policies = {name: (_greedy(name, base_url, opened), False) for name in ("base", *adapters)}
            if config.baseline_model is not None:
                policies[config.baseline_model] = (
                    _hosted(config.baseline_model, config.baseline_api_base, opened),
                    True,
                )
            for name, (policy, hosted) in policies.items():
                predict = predicting(name, opened.described, partial(opened.attempt, policy, hosted=hosted))
                predictions += await rows.of(name, held_out[: question_limit(config, name, adapters)], predict)
            return [*predictions, *also_as_trained(predictions, adapters)]

        return ask_rows(ask, checkpoint, base, adapters, journal, output=PREDICTIONS)


# A separate step, so that its episodes stay cached until production or the scenarios change.
@step(name="ask_production", output_materializers={PRODUCTION_PREDICTIONS: JsonLinesMaterializer}, cache_policy=_CODE)
def ask_task_production(
    config: EvaluationConfig, task: str, settings: dict[str, Any], identity: str, production: str
) -> Annotated[list[Prediction], PRODUCTION_PREDICTIONS]:
    """Return greedy episodes of the version in production, with its own base model and limits.

    Scenarios that it was trained on are left out. `production` is the id of its checkpoint; without one there are none.
    """
    if not production:
        return []
    checkpoint = find_checkpoint(production).checkpoint
    manifest = checkpoint.manifest
    base = {"source": manifest.base_model_source, "checksum": manifest.base_model_checksum}
    of = {"task": task, "settings": settings, "identity": identity, "production": production}
    journal = open_journal(config, code=TASK_CODE, **of)

    with _opened(config, task, settings, checkpoint) as (opened, held_out):
        if trained_on := _trained_on(task, settings, checkpoint, opened, held_out):
            say(f"the version in production was trained on {len(trained_on)} of {len(held_out)}: not asked these")
            held_out = [scenario for scenario in held_out if scenario.id not in trained_on]

        async def ask(rows: Rows, base_url: str) -> list[Prediction]:
            play = partial(opened.attempt, _greedy(PRODUCTION, base_url, opened), hosted=False)
            return await rows.of(PRODUCTION, held_out, predicting(PRODUCTION, opened.described, play))

        return ask_rows(ask, checkpoint, base, {PRODUCTION: checkpoint.path}, journal, output=PRODUCTION_PREDICTIONS)


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


@contextmanager
def _opened(
    config: EvaluationConfig, task: str, settings: dict[str, Any], checkpoint: Checkpoint
) -> Iterator[tuple[EvaluatedTask, list[Any]]]:
    """Open the task as the checkpoint was trained with it, and select its held-out scenarios."""
    plugin = load_plugin(task)
    with plugin.opened(plugin.settings.model_validate(settings), checkpoint.manifest.config, say) as opened:
        held_out = [*opened.test_scenarios()]
        random.Random(0).shuffle(held_out)
        yield opened, held_out[: config.eval_limit]


def _trained_on(
    task: str, settings: dict[str, Any], checkpoint: Checkpoint, opened: EvaluatedTask, held_out: list[Any]
) -> dict[str, str]:
    """Return the ids of the held-out scenarios that the checkpoint was trained on, each with the name of the run.

    Known is what the settings of its run, and of those that it continues, tell. The settings of an evaluation may divide the
    scenarios in another way.
    """
    chosen = load_plugin(task).settings.model_validate(settings)
    found: dict[str, str] = {}
    for manifest in _line_of(checkpoint.manifest):
        ids = _trained_by(manifest, task, chosen, opened, held_out)
        found |= dict.fromkeys(ids - found.keys(), manifest.name)
    return found


def _line_of(manifest: CheckpointManifest) -> Iterator[CheckpointManifest]:
    """Yield the manifest, that of the checkpoint which its run continued, and so on, as far as they are still there."""
    last: CheckpointManifest | None = manifest
    while last is not None:
        yield last
        start = last.config.get("continue_from")
        last = find_manifest(start) if start else None


def _trained_by(
    manifest: CheckpointManifest, task: str, chosen: Any, opened: EvaluatedTask, held_out: list[Any]
) -> set[str]:
    plugin = load_plugin(task)
    try:
        recorded = trained_settings(task, manifest.config)
        if recorded == chosen:
            return set()
        trained = [scenario for scenario in plugin.scenarios(recorded) if scenario.split == "train"]
    except (BadInput, KeyError):  # they were not recorded, or their data are not on this machine
        return set()
    # Not by the id alone, which scenarios of other data may have, too.
    asked = {(scenario.id, opened.described(scenario)["question"]) for scenario in held_out}
    shared = [scenario for scenario in trained if (scenario.id, opened.described(scenario)["question"]) in asked]
    # Before its first GRPO step a policy has seen demonstrations only, and a task may demonstrate other scenarios.
    if shared and manifest.step == 0 and not opened.demonstrations(shared, 1):
        return set()
    return {scenario.id for scenario in shared}


def _refuse(task: str, name: str, trained_on: dict[str, str], held_out: int) -> NoReturn:
    plugin = load_plugin(task)
    earlier = sorted(set(trained_on.values()) - {name})
    who, with_these = f"checkpoint {name}", "train again with these"
    if earlier:
        who, with_these = f"{who} continues run {earlier[0]}, which", f"{with_these}, but not from that run"
    raise BadInput(
        f"{who} was trained on {len(trained_on)} of these {held_out} held-out {plugin.unit}: evaluate it with the settings of task "
        f"{plugin.name} that {'that run' if earlier else 'it'} was trained with, or {with_these}"
    )
