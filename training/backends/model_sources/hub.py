"""Base models from the Hugging Face Hub or its cache on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.backends.model_sources.folder import (
    MODEL_FILES,
    WEIGHTS_SUFFIX,
    BaseModelFiles,
    model_checksum,
    require_model_folder,
)
from training.backends.model_sources.wheels import known_packages
from training.errors import BadInput
from training.files import is_disk_full


def from_hub(repo_id: str, progress: Callable[[str], None]) -> BaseModelFiles:
    """Fetch a model into the Hub's cache, unless it is there. Raises `BadInput` if it is unavailable."""
    progress(f"fetching {repo_id} from the Hugging Face Hub (or its cache)")
    return _files(repo_id, Path(_snapshot(repo_id)))


def cached(repo_id: str) -> BaseModelFiles:
    """Return a model that is in the Hub's cache whole. Raises `BadInput` if it is not."""
    return _files(repo_id, Path(_snapshot(repo_id, local_files_only=True)))


def cached_folder(repo_id: str) -> Path | None:
    """Return the folder of a cached model, which may be incomplete."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo_id, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def remote_weight_bytes(repo_id: str) -> int | None:
    """Return the size of the weights on the Hub without fetching them; `None` if the Hub does not say."""
    files = _snapshot(repo_id, dry_run=True)
    return sum(file.file_size or 0 for file in files if file.filename.endswith(WEIGHTS_SUFFIX)) or None


def _files(repo_id: str, path: Path) -> BaseModelFiles:
    require_model_folder(path)
    return BaseModelFiles(id=repo_id, path=path, checksum=model_checksum(path))


def _snapshot(repo_id: str, **how: bool) -> Any:
    """Return the folder with the model's files, by `snapshot_download`; in a dry run the list of files to fetch."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError  # of the HTTP library that this version uses

    try:
        return snapshot_download(repo_id, allow_patterns=MODEL_FILES, **how)
    except HFValidationError as error:
        raise BadInput(f"base_model: {repo_id} is no valid name of a model on the Hub") from error
    except (OSError, HTTPError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_disk_full(error):  # hf_xet reports a full disk as one
            raise
        raise BadInput(f"base_model: {_explained(repo_id, error)}") from error


def _explained(repo_id: str, error: Exception) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if is_disk_full(error):
        return (
            f"no space left in the Hub's cache {HF_HUB_CACHE} for {repo_id}: free some, or set HF_HOME to a larger disk"
        )
    # A dry run, or an incomplete copy in the cache, has the Hub's answer as its cause.
    answer = error if isinstance(error, RepositoryNotFoundError) else error.__cause__
    if isinstance(answer, GatedRepoError):
        return f"{repo_id} is gated: accept its licence on the Hub and set HF_TOKEN"
    if isinstance(answer, RepositoryNotFoundError):
        return f"the Hub has no public model {repo_id}: check the name, or set HF_TOKEN"
    return (
        f"{repo_id} is not in the local cache and the Hub cannot be reached: check the connection, "
        f"or name a local folder or a known package ({known_packages()})"
    )
