"""Which server answers for a policy. vLLM is a stand-in that ART's installer installs and that serves the models on a CPU."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import openai
import pytest

from tests.fakes.vllm_runtime import install_runtime
from tests.tiny_checkpoint import tiny_checkpoint
from training import backends
from training.backends import serving
from training.backends.serving import VllmServer, open_policy_server, serve_arguments, serving_settings
from training.backends.torch import PolicyServer, TorchSettings
from training.errors import BadInput
from training.settings import TrainerSettings

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and without ART's vLLM runtime."""
    monkeypatch.setattr(serving, "_gpu_here", lambda: True)
    monkeypatch.delenv("ART_VLLM_RUNTIME_BIN", raising=False)
    monkeypatch.setenv("ART_VLLM_RUNTIME_CACHE_DIR", str(tmp_path / "cache"))


def test_a_policy_is_served_with_the_base_weights_that_it_was_trained_with() -> None:
    trained_with = {"torch": {"base_weights": "int8", "kv_cache_tokens": 8192, "threads": 64, "device": "cuda:7"}}
    assert serving_settings(trained_with) == TorchSettings(base_weights="int8", kv_cache_tokens=8192)
    assert serving_settings({}) == TorchSettings()


def reply(base_url: str, model: str) -> str:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "Who?"}]
        asked = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=12)
    return asked.choices[0].message.content or ""


def test_a_policy_of_the_local_backend_is_answered_by_the_vllm_that_trained_it(tmp_path: Path) -> None:
    install_runtime(tmp_path)
    checkpoint = tiny_checkpoint(tmp_path, seed=1)
    models = tmp_path / "base-1", {"trained": checkpoint.path}
    with open_policy_server(*models, {"backend": "torch"}) as ours:
        assert isinstance(ours, PolicyServer)
        expected = [reply(ours.base_url, name) for name in ("base", "trained")]
    with open_policy_server(*models, {"backend": "local", "max_context": 4096}) as server:
        assert isinstance(server, VllmServer)
        assert [reply(server.base_url, name) for name in ("base", "trained")] == expected
        process = server._process
    assert process.poll() is not None and expected[0] != expected[1]


def test_without_it_ours_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny_checkpoint(tmp_path, seed=1)
    models = tmp_path / "base-1", {"trained": checkpoint.path}
    recorded: list[str] = []
    with open_policy_server(*models, {"backend": "local"}, warn=recorded.append) as server:
        assert isinstance(server, PolicyServer), "vLLM is not installed"
    install_runtime(tmp_path, "pass")
    monkeypatch.setattr(serving, "_gpu_here", lambda: False)
    with open_policy_server(*models, {"backend": "local"}, warn=recorded.append) as server:
        assert isinstance(server, PolicyServer), "there is no GPU"
    with open_policy_server(*models, {"backend": "torch"}, warn=recorded.append):
        pass
    assert ["no vLLM here" in recorded[0], "no GPU here" in recorded[1], len(recorded)] == [True, True, 2]


def test_a_start_that_fails_is_one_line(tmp_path: Path) -> None:
    install_runtime(tmp_path, "print('loading')\nraise SystemExit('no kernel image is available')")
    with pytest.raises(BadInput, match=r"vLLM did not start \(exit code 1\): no kernel image is available; its log is"):
        open_policy_server(tmp_path, {}, {"backend": "local"})


def test_unset_options_are_left_to_vllm(tmp_path: Path) -> None:
    words = serve_arguments(tmp_path, {}, 8000)
    assert "--enable-lora" not in words and "--max-model-len" not in words


def test_art_finds_uv_in_an_environment_that_is_not_activated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr(backends, "require_backend", lambda settings: "a GPU")
    backends.open_backend(TrainerSettings(backend="local"), tmp_path)
    assert shutil.which("uv")


def test_art_configures_a_model_where_megatron_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "require_backend", lambda settings: "a GPU")
    backends.open_backend(TrainerSettings(backend="local"), tmp_path)
    from art.dev.get_model_config import get_model_config

    config = get_model_config("Qwen/Qwen2.5-7B-Instruct", str(tmp_path), None)
    assert {"q_proj", "down_proj"} <= set(config["peft_args"]["target_modules"])
