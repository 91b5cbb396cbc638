"""Find out where a step runs, which decides what can be checked on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zenml.client import Client


def runs_elsewhere(step: str, step_settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the step runs in a pod, with other GPU, memory, keys and files than this machine."""
    if step_settings.get(step, {}).get("step_operator"):
        return True
    return bool(Client().active_stack.orchestrator.config.is_remote)
