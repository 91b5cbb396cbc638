"""Prepare the base model."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from reports.console import say
from steps.project import MODELS
from steps.published_model import publish_base_model
from training.backends.base_model import resolve_base_model


@step(enable_cache=False)
def setup_art_model(base_model: str) -> Annotated[dict[str, str], "base_model"]:
    """Fetch and verify the base model. Return its id, source and checksums.

    With a remote artifact store the files are published there for later steps.

    Never cached, because it reports the present files of this machine, which takes milliseconds for a prepared model.
    """
    files = resolve_base_model(base_model, MODELS, progress=say)
    publish_base_model(files, base_model)
    return {"id": files.id, "checksum": files.checksum, "content": files.content(), "source": base_model}
