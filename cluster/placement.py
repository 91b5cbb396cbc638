"""Whether a step runs on this machine, which decides what can be checked here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zenml.client import Client


def runs_elsewhere(step: str, step_settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the step runs in a pod: its GPU, memory, keys and files are not those of this machine."""
    if step_settings.get(step, {}).get("step_operator"):
        return True
    return bool(Client().active_stack.orchestrator.config.is_remote)
