"""Find and verify the base model of the checkpoint."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from reports.console import say
from steps.project import MODELS
from steps.published_model import publish_base_model, published_base_model
from training.backends.base_model import resolve_base_model
from training.backends.model_sources.folder import content_checksum
from training.checkpoint import Checkpoint


@step(enable_cache=False)
def load_trained_model(
    checkpoint: Checkpoint, base_model: str | None = None
) -> Annotated[dict[str, str], "base_model"]:
    """Resolve the base model, by default the one that the checkpoint names, and refuse one that it was not trained from.

    A published base model is not fetched, because its name is the checksum of its weights. Never cached, because answers
    depend on the present tokenizer and chat template too.
    """
    source = base_model or checkpoint.manifest.base_model_source
    if published := published_base_model(source, checkpoint.manifest.base_model_checksum):
        content = content_checksum(published.checksum, published.files)
        return {"id": published.id, "checksum": published.checksum, "content": content, "source": source}
    files = resolve_base_model(source, MODELS, progress=say)
    checkpoint.require_base(files)
    publish_base_model(files, source)
    return {"id": files.id, "checksum": files.checksum, "content": files.content(), "source": source}
