"""Find the current version of the mail source. The later data steps run again only if it changed."""

from __future__ import annotations

from typing import Annotated

from zenml import step

from configs.schema import DataConfig
from steps.data.sources import current_source_version


@step(enable_cache=False)
def check_source(config: DataConfig) -> Annotated[str, "source_version"]:
    """Return the version of the source. Raises `BadInput` if a dataset cannot be asked."""
    return current_source_version(config)
