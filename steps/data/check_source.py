"""What the mails' source is like now: the data steps after this one run again only when that changed."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from configs.schema import DataConfig
from steps.data.sources import current_source_version


@step(enable_cache=False)
def check_source(config: DataConfig) -> Annotated[str, "source_version"]:
    """Raises `BadInput` when a dataset cannot be asked."""
    return current_source_version(config)
