"""ART's configuration of a model, and backends that cannot gather ahead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from art.dev.validate import is_dedicated_mode, validate_dedicated_config
from filelock import FileLock

from training.backends import require_backend
from training.errors import BadInput
from training.session import _place, model_config, run_training
from training.settings import TrainerSettings


@pytest.mark.parametrize(
    ("backend", "ahead", "two_gpus"),
    [("local", 1, True), ("local", 0, False), ("torch", 1, False), ("serverless", 1, False)],
)
def test_vllm_has_a_gpu_of_its_own_when_rollouts_and_updates_overlap(backend: str, ahead: int, two_gpus: bool) -> None:
    config = model_config(TrainerSettings(backend=backend, max_steps_off_policy=ahead, max_context=4096))
    validate_dedicated_config(config)
    assert is_dedicated_mode(config) == two_gpus and config["init_args"] == {"max_seq_length": 4096}


def test_rank_and_seed_reach_the_local_backend() -> None:
    config = model_config(TrainerSettings(backend="local", lora_rank=24, seed=7))
    assert config["peft_args"] == {"r": 24, "lora_alpha": 48, "random_state": 7}
    assert config["engine_args"] == {"max_lora_rank": 32}, "vLLM takes some ranks only"


@pytest.mark.parametrize(
    ("backend", "ignored", "named"),
    [
        ("torch", {"serverless_url": "http://127.0.0.1"}, "serverless_url=http://127.0.0.1: .* set it to null"),
        ("local", {"lora_layers": 12}, "lora_layers=12: .* set it to null"),
        ("local", {"torch": {"threads": 2}}, "torch.threads=2: .* set it to null"),
        ("local", {"max_context": 3000}, "max_context=3000: .* set it to a multiple of 1024, such as 3072"),
        ("serverless", {"lora_rank": 8}, "lora_rank=8: .* set it to 16"),
    ],
)
def test_a_setting_that_the_backend_cannot_use_is_refused(backend: str, ignored: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=f"^{named}$"):
        require_backend(TrainerSettings.model_validate({"backend": backend, "demonstrations": 0, **ignored}))


def test_off_policy_local_training_needs_a_second_gpu_and_has_no_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    gpu = SimpleNamespace(name="GPU", total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    ahead = TrainerSettings(backend="local", max_steps_off_policy=1, demonstrations=0)
    with pytest.raises(BadInput, match="max_steps_off_policy=1 with backend=local needs two GPUs"):
        require_backend(ahead)
    assert require_backend(ahead.model_copy(update={"max_steps_off_policy": 0})) == "GPU with 80 GB"
    assert require_backend(ahead.model_copy(update={"backend": "torch"})) == "GPU with 80 GB"
    gpus = 2
    assert require_backend(ahead) == "GPU with 80 GB"
    with pytest.raises(BadInput, match="set demonstrations=0"):
        require_backend(ahead.model_copy(update={"demonstrations": 10}))
    require_backend(ahead.model_copy(update={"demonstrations": 10, "continue_from": "earlier"}))


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "r1-abc"
    folder.mkdir()
    begun = run_training(None, base_model="none", settings=TrainerSettings(), max_tokens=8, run_folder=folder)  # type: ignore[arg-type]
    with (
        FileLock(folder / ".lock"),
        pytest.raises(
            BadInput, match="^run r1-abc is being trained by another process: wait for it, or end that first$"
        ),
    ):
        asyncio.run(begun)


def test_runs_have_their_own_models_on_a_server_that_they_share() -> None:
    shared = TrainerSettings(backend="serverless", demonstrations=0)
    assert _place("outreach", shared, "tiny")["name"] == "outreach-tiny"
    assert _place("outreach", TrainerSettings(), "tiny")["name"] == "outreach"
