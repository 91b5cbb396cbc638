"""Find the version in production during a scheduled run."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from steps.artifact_names import CHECKPOINT
from steps.model_registry import production_version


@step(enable_cache=False)
def find_production() -> Annotated[str, "production"]:
    """Return the id of the checkpoint in production; empty if there is none."""
    version = production_version()
    checkpoint = version.get_artifact(CHECKPOINT) if version else None
    return str(checkpoint.id) if checkpoint else ""
