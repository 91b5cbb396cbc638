"""Find out where a step runs, which decides what can be checked on this machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from zenml.client import Client

from training.errors import BadInput

DATA_STEPS = ("check_source", "create_database", "load_scenarios")
TRAINING_STEPS = ("setup_art_model", "train_agent")
EVALUATION_STEPS = ("load_trained_model", "find_production", "run_inference", "ask_production", "compute_metrics")
TASK_STEPS = (*TRAINING_STEPS, *(step for step in EVALUATION_STEPS if step != "find_production"))
LOOP_STEPS = ("prepare_outreach", "setup_art_model", "learn_outreach", "run_inference", "evaluate_outreach")


def runs_elsewhere(step: str, step_settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the step runs in a pod, with other GPU, memory, keys and files than this machine."""
    if step_settings.get(step, {}).get("step_operator"):
        return True
    return bool(Client().active_stack.orchestrator.config.is_remote)


def require_steps(step_settings: Mapping[str, Mapping[str, Any]], steps: Collection[str]) -> None:
    """Raise BadInput if `step_settings` names a step that the pipelines of this command do not have."""
    if unknown := sorted(step_settings.keys() - set(steps)):
        raise BadInput(f"step_settings.{unknown[0]}: no step of this command; its steps are {', '.join(steps)}")
