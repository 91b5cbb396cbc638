"""Which base model the checkpoint belongs to, verified on this machine."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from reports.console import say
from steps.project import MODELS
from training.backends.base_model import resolve_base_model
from training.checkpoint import Checkpoint


@step
def load_trained_model(checkpoint: Checkpoint, base_model: str | None = None) -> Annotated[dict[str, str], "base_model"]:
    """Resolves the base model (by default the one that the checkpoint names) and refuses any that it was not trained from."""
    source = base_model or checkpoint.manifest.base_model_source
    files = resolve_base_model(source, MODELS, progress=say)
    checkpoint.require_base(files.id, files.checksum)
    return {"id": files.id, "checksum": files.checksum, "source": source}
