"""Fixtures for the torch backend: tiny models with real mechanics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.training.backends.torch.tiny_models import save_tiny_model
from training.backends.torch import PolicyServer, TorchSettings


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def settings() -> TorchSettings:
    return TorchSettings(
        device="cpu", threads=1, matmul_dtype="float32", lora_rank=4, lora_layers=2, kv_cache_tokens=2048
    )


@pytest.fixture(scope="module")
def server(llama_dir: Path, settings: TorchSettings) -> Iterator[PolicyServer]:
    with PolicyServer(llama_dir, {}, settings) as server:
        yield server


@pytest.fixture
def client(server: PolicyServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)


@pytest.fixture(autouse=True)
def _transformers_without_arts_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing ART replaces a function of transformers by one with an older signature, and then no model can run.

    Ours never calls it; the reference computations of these tests do.
    """
    from art.transformers.patches import _preprocess_mask_arguments

    monkeypatch.setattr("transformers.masking_utils._preprocess_mask_arguments", _preprocess_mask_arguments)
