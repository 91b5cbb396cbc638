"""Run every policy, the oracle, "do nothing" and the version in production on the held-out bugs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

from zenml import step
from zenml.config.cache_policy import CachePolicy

from agent.metrics import Prediction
from configs.schema import CodingConfig, EvaluationConfig
from materializers.json_lines import JsonLinesMaterializer
from reports.console import counter, say
from steps.artifact_names import PREDICTIONS, PRODUCTION_PREDICTIONS
from steps.caching import keep_errors_out_of_cache
from steps.coding.sandbox_service import sandbox_service
from steps.evaluation.ask_production import PRODUCTION
from steps.evaluation.run_inference import adapters_to_ask
from steps.interruption import run_cancellable
from steps.project import source_files
from steps.published_model import base_model_files
from tasks.coding.repl import CodingRun
from tasks.coding.scenarios import CodingScenario
from tasks.coding.task import BUILT_IN, CodingTask, load_scenarios
from training.backends.serving import open_policy_server
from training.checkpoint import Checkpoint
from training.task import Policy

ATTEMPTS = 3
"""Maximum attempts at a bug when the sandbox or the policy's server fails."""


@step(
    output_materializers={PREDICTIONS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files("sandbox", "tasks", "training")),
)
def evaluate_coding_agent(
    config: EvaluationConfig, coding: CodingConfig, checkpoint: Checkpoint, warm_start: Checkpoint
) -> Annotated[list[Prediction], PREDICTIONS]:
    """Return greedy repairs by the untouched base, the warm start and the trained policy, and the rows "oracle" and "do
    nothing".
    """
    adapters = adapters_to_ask(checkpoint, warm_start)

    async def ask(held_out: _HeldOut, base_url: str) -> list[Prediction]:
        task = held_out.task
        predictions = await held_out.row("oracle", lambda bug: task.scripted(bug.oracle_cells(), bug))
        predictions += await held_out.row("do_nothing", lambda bug: task.scripted([], bug))
        for name in ("base", *adapters):
            predictions += await held_out.asked(name, base_url)
        if "trained" not in adapters:
            say("the best checkpoint of the run is the warm start: asked once, as both")
            warm = [prediction for prediction in predictions if prediction.policy == "warm_start"]
            predictions += [prediction.model_copy(update={"policy": "trained"}) for prediction in warm]
        return predictions

    return _evaluate(config, coding, checkpoint, adapters, ask)


# A separate step, so that its repairs stay cached until production or the bugs change.
@step(
    output_materializers={PRODUCTION_PREDICTIONS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files("sandbox", "tasks", "training")),
)
def ask_coding_production(
    config: EvaluationConfig, coding: CodingConfig, production: Checkpoint
) -> Annotated[list[Prediction], PRODUCTION_PREDICTIONS]:
    """Return greedy repairs by the version in production, with its own base model and prompt."""

    async def ask(held_out: _HeldOut, base_url: str) -> list[Prediction]:
        return await held_out.asked(PRODUCTION, base_url)

    return _evaluate(config, coding, production, {PRODUCTION: production.path}, ask)


class _HeldOut:
    """Runs one policy after another on the held-out bugs."""

    def __init__(self, task: CodingTask, bugs: list[CodingScenario], *, concurrent: int) -> None:
        self.task, self._bugs, self._slots = task, bugs, asyncio.Semaphore(concurrent)

    async def asked(self, name: str, base_url: str) -> list[Prediction]:
        """Return the prediction of the named policy for each bug."""
        policy = Policy(base_url=base_url, model=name, temperature=0.0, max_tokens=self.task.max_tokens)
        return await self.row(name, lambda bug: self.task.run(policy, bug))

    async def row(self, name: str, play: Callable[[CodingScenario], Awaitable[CodingRun]]) -> list[Prediction]:
        """Return the prediction for each bug, played by the given function."""
        with counter(f"bugs tried by {name.replace('_', ' ')}", total=len(self._bugs)) as advance:

            async def one(scenario: CodingScenario) -> Prediction:
                async with self._slots:
                    prediction = await predict(name, scenario, play)
                advance.one()
                return prediction

            return list(await asyncio.gather(*map(one, self._bugs)))


def _evaluate(
    config: EvaluationConfig,
    coding: CodingConfig,
    checkpoint: Checkpoint,
    adapters: dict[str, Path],
    ask: Callable[[_HeldOut, str], Coroutine[Any, Any, list[Prediction]]],
) -> list[Prediction]:
    """Return the predictions of `ask`, given a sandbox and a server of the checkpoint's base model and `adapters`."""
    manifest = checkpoint.manifest
    trained_with = manifest.config
    files = base_model_files(manifest.base_model_source, manifest.base_model_checksum, progress=say)
    checkpoint.require_base(files)
    scenarios = load_scenarios(coding)
    concurrent, images = trained_with["max_concurrent"], coding.bugs != BUILT_IN
    with sandbox_service(coding.sandbox_url, capacity=2 * concurrent, images=images) as sandbox_url:
        task = CodingTask(
            scenarios,
            coding,
            sandbox_url,
            max_tokens=trained_with["max_tokens"],
            rollout_timeout=trained_with["rollout_timeout"],
            system_prompt=trained_with["system_prompt"],
        )
        bugs = task.test_scenarios()
        random.Random(0).shuffle(bugs)
        held_out = _HeldOut(task, bugs[: config.eval_limit], concurrent=concurrent)
        with open_policy_server(files.path, adapters, trained_with) as server:
            predictions = run_cancellable(ask(held_out, server.base_url))
    keep_errors_out_of_cache(predictions)
    return predictions


async def predict(
    name: str, scenario: CodingScenario, play: Callable[[CodingScenario], Awaitable[CodingRun]]
) -> Prediction:
    """Return the prediction of a policy for one bug. A failure of the sandbox or the server is an error, never a wrong
    repair.
    """
    known = {
        "policy": name,
        "scenario_id": scenario.id,
        "kind": f"{scenario.kind} (unseen)" if scenario.held_out_family else scenario.kind,
        "question": scenario.problem,
        "reference": scenario.reference,
    }
    started = time.monotonic()
    for attempt in range(ATTEMPTS):
        try:
            run = await play(scenario)
        except Exception as error:  # any failure becomes this bug's result, with its name and message
            if attempt + 1 < ATTEMPTS:
                continue
            return Prediction(
                **known,
                seconds=time.monotonic() - started,
                outcome="error",
                error=type(error).__name__,
                reason=str(error),
            )
        break
    return Prediction(
        **known,
        answer=run.cells[0] if run.cells else None,
        correct=run.correct,
        reason=f"{sum(run.passed)} of {len(run.passed)} hidden checks pass",
        turns=run.steps,
        seconds=run.seconds,
        outcome=run.outcome,
        transcript=run.transcript(),
    )
