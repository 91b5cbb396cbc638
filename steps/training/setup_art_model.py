"""Which base model, exactly."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from reports.console import say
from steps.project import MODELS
from steps.published_model import publish_base_model
from training.backends.base_model import resolve_base_model


@step(enable_cache=False)
def setup_art_model(base_model: str) -> Annotated[dict[str, str], "base_model"]:
    """Fetches, verifies and caches the base model; returns its id, source and checksum.

    With artifacts on other machines the files are published there for the steps that follow.

    Never cached: its result says what this machine's weights are now, and a prepared model answers in milliseconds.
    """
    files = resolve_base_model(base_model, MODELS, progress=say)
    publish_base_model(files, base_model)
    return {"id": files.id, "checksum": files.checksum, "source": base_model}
