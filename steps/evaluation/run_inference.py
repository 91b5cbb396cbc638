"""Ask every policy and every non-learning baseline the held-out questions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from zenml import step
from zenml.config.cache_policy import CachePolicy

from agent.evaluation import BASELINES, START, WARM_START, Evaluation, select_questions
from agent.judges.settings import open_judge
from agent.metrics import Prediction
from configs.schema import EvaluationConfig
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.json_lines import JsonLinesMaterializer
from steps.artifact_names import PREDICTIONS
from steps.evaluation.journal import CODE, open_journal
from steps.evaluation.prompted import prompted_model
from steps.evaluation.rows import Rows, also_as_trained, ask_rows
from steps.inference.service_lifecycle import episode_settings
from steps.project import source_files
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.task import Policy

SAMPLE_TEMPERATURE = 1.0
"""Temperature of `eval_samples`, that of the policy's own distribution, as pass@k is published."""


def adapters_to_ask(trained: Checkpoint, warm_start: Checkpoint | None) -> dict[str, Path]:
    """Return the adapters to evaluate, by policy name.

    The policy before the first GRPO step is called `warm_start`, or `start` in a run that continued from an earlier
    one. A run from the base model has no such row. If that policy is the best checkpoint too, it is asked once.
    """
    if warm_start is None or warm_start.manifest.step > 0:
        return {"trained": trained.path}
    before = START if warm_start.manifest.config.get("continue_from") else WARM_START
    if warm_start.manifest.adapter_checksum == trained.manifest.adapter_checksum:
        return {before: warm_start.path}
    return {before: warm_start.path, "trained": trained.path}


def question_limit(config: EvaluationConfig, name: str, adapters: dict[str, Path]) -> int | None:
    """Return the number of questions to ask the policy `name`, of those selected; `None`: all.

    The first ones are a random sample, because the questions are shuffled.
    """
    if name == "base":
        return config.base_limit
    return config.start_limit if name in (WARM_START, START) and "trained" in adapters else None


@step(
    output_materializers={PREDICTIONS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files(*CODE)),
)
def run_inference(
    config: EvaluationConfig,
    base: dict[str, str],
    checkpoint: Checkpoint,
    database: MailDatabase,
    scenarios: list[Scenario],
    warm_start: Checkpoint | None = None,
) -> Annotated[list[Prediction], PREDICTIONS]:
    """Return greedy answers of the untouched base, the warm start, the trained policy and the non-learning baselines.

    The answers of an earlier, interrupted run of the same evaluation are not asked for again.
    """
    config.require_judge()
    questions = select_questions(scenarios, config.eval_limit)
    if not questions:
        raise BadInput("there are no test questions: check why the data pipeline dropped them")
    settings = episode_settings(checkpoint.manifest.config)
    prompted = prompted_model(config, settings)
    if prompted:
        prompted.require_ready("baseline_model")
    adapters = adapters_to_ask(checkpoint, warm_start)
    evaluation = Evaluation(database, open_judge(config), settings)

    async def ask(rows: Rows, base_url: str) -> list[Prediction]:
        predictions: list[Prediction] = []
        paid = config.judge != "exact"  # the verdicts on baselines, which take no time themselves
        for name in BASELINES:
            predictions += await rows.of(name, questions, partial(evaluation.baseline, name), kept=paid)
        for name in ("base", *adapters):
            asked = questions[: question_limit(config, name, adapters)]
            policy = Policy(base_url=base_url, model=name, temperature=0.0, max_tokens=settings.max_tokens)
            predictions += await rows.of(name, asked, partial(evaluation.policy, name, policy))
            sampled = partial(evaluation.policy, name, policy.model_copy(update={"temperature": SAMPLE_TEMPERATURE}))
            for sample in range(1, config.eval_samples + 1):
                shown = f"sample {sample} of {config.eval_samples} by {name}"
                predictions += await rows.of(name, asked, sampled, shown=shown, sample=sample)
        if prompted:
            predictions += await rows.of(
                prompted.model, questions, partial(evaluation.policy, prompted.model, prompted), shown=prompted.model
            )
        predictions += also_as_trained(predictions, adapters)
        if config.base_grammar:
            policy = Policy(
                base_url=base_url, model="base", temperature=0.0, max_tokens=settings.max_tokens, must_call=True
            )
            name = "base_with_grammar"
            predictions += await rows.of(name, questions, partial(evaluation.policy, name, policy))
        return predictions

    journal = open_journal(config, base=base["content"])
    return ask_rows(ask, checkpoint, base, adapters, journal, output=PREDICTIONS)
