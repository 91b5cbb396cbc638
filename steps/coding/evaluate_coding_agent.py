"""The held-out bugs through every policy, the oracle and a policy that does nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from zenml import log_metadata, step
from zenml.config.cache_policy import CachePolicy
from zenml.types import HTMLString

from agent.metrics import Prediction
from configs.schema import CodingConfig, EvaluationConfig
from reports.console import counter, say
from reports.evaluation import evaluation_html
from steps.artifact_names import METRICS, REPORT
from steps.caching import keep_errors_out_of_cache
from steps.coding.sandbox_service import sandbox_service
from steps.evaluation.compute_metrics import summarize
from steps.evaluation.run_inference import adapters_to_ask
from steps.interruption import run_cancellable
from steps.project import code_of
from steps.published_model import base_model_files
from tasks.coding.repl import CodingRun, oracle_cells
from tasks.coding.scenarios import CodingScenario
from tasks.coding.task import CodingTask, load_scenarios
from training.backends.serving import open_policy_server
from training.checkpoint import Checkpoint
from training.task import Policy

ATTEMPTS = 3
"""How often a bug is tried at most when the sandbox or the policy's server fails."""


@step(cache_policy=CachePolicy(file_dependencies=code_of("sandbox", "tasks", "training")))
def evaluate_coding_agent(
    config: EvaluationConfig, coding: CodingConfig, checkpoint: Checkpoint, warm_start: Checkpoint
) -> tuple[Annotated[dict[str, Any], METRICS], Annotated[HTMLString, REPORT]]:
    """Greedy repairs by the untouched base, the warm start and the trained policy, next to oracle and do nothing."""
    manifest = checkpoint.manifest
    trained_with = manifest.config
    files = base_model_files(manifest.base_model_source, manifest.base_model_checksum, progress=say)
    adapters = adapters_to_ask(checkpoint, warm_start)
    scenarios = load_scenarios(coding)
    with sandbox_service(coding.sandbox_url, capacity=2 * trained_with["max_concurrent"]) as sandbox_url:
        task = CodingTask(
            scenarios,
            coding,
            sandbox_url,
            max_tokens=trained_with["max_tokens"],
            system_prompt=trained_with["system_prompt"],
        )
        bugs = task.test_scenarios()
        random.Random(0).shuffle(bugs)
        bugs = bugs[: config.eval_limit]

        async def ask_all(base_url: str) -> list[Prediction]:
            slots = asyncio.Semaphore(trained_with["max_concurrent"])

            async def row(name: str, play: Callable[[CodingScenario], Awaitable[CodingRun]]) -> list[Prediction]:
                with counter(f"bugs tried by {name.replace('_', ' ')}", total=len(bugs)) as advance:

                    async def one(scenario: CodingScenario) -> Prediction:
                        async with slots:
                            prediction = await predict(name, scenario, play)
                        advance.one()
                        return prediction

                    return list(await asyncio.gather(*map(one, bugs)))

            predictions = await row("oracle", lambda scenario: task.scripted(oracle_cells(scenario), scenario))
            predictions += await row("do_nothing", lambda scenario: task.scripted([], scenario))
            for name in ("base", *adapters):
                policy = Policy(base_url=base_url, model=name, temperature=0.0, max_tokens=task.max_tokens)
                predictions += await row(name, lambda scenario, policy=policy: task.run(policy, scenario))
            if "trained" not in adapters:
                say("trained is the warm start, the best checkpoint of its run: asked once")
                warm = [prediction for prediction in predictions if prediction.policy == "warm_start"]
                predictions += [prediction.model_copy(update={"policy": "trained"}) for prediction in warm]
            return predictions

        with open_policy_server(files.path, adapters, trained_with) as server:
            predictions = run_cancellable(ask_all(server.base_url))
    keep_errors_out_of_cache(predictions)
    summary = summarize(predictions)
    log_metadata({"evaluation": {"n": summary["n"]}}, infer_model=True)
    rows = [prediction.model_dump(mode="json") for prediction in predictions]
    subtitle = f"run {manifest.name}, step {manifest.step} of {manifest.base_model}"
    return summary, HTMLString(evaluation_html(summary, rows, title="Coding agent", subtitle=subtitle))


async def predict(
    name: str, scenario: CodingScenario, play: Callable[[CodingScenario], Awaitable[CodingRun]]
) -> Prediction:
    """What a policy did with one bug. A failure of the sandbox or the server is an error, never a wrong repair."""
    known = {
        "policy": name,
        "scenario_id": scenario.id,
        "kind": f"{scenario.kind} (unseen)" if scenario.held_out_family else scenario.kind,
        "question": scenario.problem,
        "reference": scenario.repaired.strip(),
    }
    started = time.monotonic()
    for attempt in range(ATTEMPTS):
        try:
            run = await play(scenario)
        except Exception as error:  # whatever failed is this bug's result, by name and message
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
