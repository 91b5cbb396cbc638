"""The pipeline of a schedule: data if the source changed, training, evaluation, and the gate to production.

Each run looks up what can change between runs: the state of the source, and the version in production.
"""

from __future__ import annotations

from zenml import pipeline
from zenml.enums import ExecutionMode

from configs.schema import DataConfig, EvaluationConfig, TrainingConfig
from steps.data.check_source import check_source
from steps.data.create_database import create_database
from steps.data.load_scenarios import load_scenarios
from steps.evaluation.ask_production import ask_production
from steps.evaluation.compute_metrics import compute_metrics
from steps.evaluation.find_production import find_production
from steps.evaluation.run_inference import run_inference
from steps.training.setup_art_model import setup_art_model
from steps.training.train_agent import train_agent
from training.settings import FROM_PRODUCTION


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def retraining_pipeline(data: DataConfig, training: TrainingConfig, evaluation: EvaluationConfig) -> None:
    version = check_source(config=data)
    database, _ = create_database(config=data, source_version=version)
    scenarios = load_scenarios(config=data, database=database, source_version=version)
    base = setup_art_model(base_model=training.base_model)
    start = training.continue_from
    if start == FROM_PRODUCTION:
        start = find_production(id="find_start")
    # Every run trains and decides, regardless of the cache.
    checkpoint, warm_start, _, _ = train_agent.with_options(enable_cache=False)(
        config=training, run_key=None, base=base, database=database, scenarios=scenarios, start=start
    )
    asked = {"config": evaluation.without_gate(), "database": database, "scenarios": scenarios}
    predictions = run_inference(base=base, checkpoint=checkpoint, warm_start=warm_start, **asked)
    # Looked up after the training, because production may change during its hours.
    production = find_production(after=["train_agent"])
    answers = ask_production(production=production, **asked)
    compute_metrics.with_options(enable_cache=False)(
        config=evaluation, predictions=predictions, checkpoint=checkpoint, production=answers, compared_with=production
    )
