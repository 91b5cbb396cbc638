"""Find the version in production during a scheduled run."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from steps.artifact_names import CHECKPOINT, MODEL_NAME
from steps.model_registry import production_version


@step(enable_cache=False)
def find_production(model: str = MODEL_NAME) -> Annotated[str, "production"]:
    """Return the id of the checkpoint of this model in production; empty if there is none."""
    version = production_version(model)
    checkpoint = version.get_artifact(CHECKPOINT) if version else None
    return str(checkpoint.id) if checkpoint else ""
