"""Start the server of a trained policy: vLLM if it was trained with vLLM, otherwise the torch engine."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError

from pydantic import ValidationError

from training.backends import vllm_lora_rank
from training.backends.prompt_template import replaced_template
from training.backends.torch import PolicyServer, TorchSettings
from training.checkpoint import ADAPTER_CONFIG
from training.errors import BadInput
from training.loopback import DIRECT

BASE = "base"
_START_SECONDS = 1200.0
"""Seconds for vLLM to start (ART's limit): it reads the weights and captures CUDA graphs."""
_STOP_SECONDS = 30.0
_OF_THE_MODEL = ("base_weights", "kv_cache_tokens")
"""Settings of the torch backend that a policy is served with as it was trained; the others are for one machine."""


def open_policy_server(
    model_dir: Path,
    adapters: Mapping[str, Path],
    trained_with: Mapping[str, Any],
    *,
    port: int = 0,
    warn: Callable[[str], None] = lambda line: None,
) -> PolicyServer | VllmServer:
    """Start a server of `base` and `adapters`. `trained_with` holds the settings of the training; port 0 means any free port.

    `warn` gets a message when vLLM trained the policy and cannot serve it.

    Raises:
        BadInput: a folder is incomplete, an adapter does not fit the base, or vLLM does not start.
    """
    of_vllm = trained_with.get("backend") == "local"
    vllm = installed_vllm() if of_vllm else None
    if of_vllm and vllm is None:
        missing = "vLLM" if _gpu_here() else "GPU"
        warn(
            f"this policy was trained with vLLM, but there is no {missing} here: the torch engine answers, more slowly"
        )
    if vllm is None:
        return PolicyServer(model_dir, adapters=adapters, settings=serving_settings(trained_with), port=port)
    return VllmServer(vllm, model_dir, adapters, port=port)


def serving_settings(trained_with: Mapping[str, Any]) -> TorchSettings:
    """Return the settings of the torch backend for serving a policy trained with the settings `trained_with`.

    Raises `BadInput` if one cannot be used.
    """
    of_training = trained_with.get("torch") or {}
    try:
        return TorchSettings(**{name: of_training[name] for name in _OF_THE_MODEL if name in of_training})
    except (TypeError, ValidationError) as error:
        raise BadInput(f"checkpoint: its settings of the torch backend cannot be used: {error}") from None


def installed_vllm() -> Path | None:
    """Return the `vllm` command of ART's runtime; None without a GPU or before the first training."""
    if not _gpu_here():
        return None
    from art.vllm_runtime import RUNTIME_SERVER, get_vllm_runtime_cache_root

    named = os.environ.get("ART_VLLM_RUNTIME_BIN")
    servers = (
        [Path(shlex.split(named)[0])] if named else get_vllm_runtime_cache_root().glob(f"*/.venv/bin/{RUNTIME_SERVER}")
    )
    return next((server.with_name("vllm") for server in servers if server.with_name("vllm").is_file()), None)


def _gpu_here() -> bool:
    import torch

    return torch.cuda.is_available()


class VllmServer:
    """vLLM in a separate process, with the interface of `PolicyServer`."""

    def __init__(
        self,
        vllm: Path,
        model_dir: Path,
        adapters: Mapping[str, Path],
        *,
        port: int = 0,
    ) -> None:
        from art.utils.lifecycle import (
            managed_process_cmd,  # ART takes seconds to import, and the torch engine does not need it
        )

        descriptor, log = tempfile.mkstemp(prefix="vllm-", suffix=".log")
        self._log = Path(log)
        self._ready = False
        port = port or _free_port()
        self._process = subprocess.Popen(
            # Ends with this process, even if that is killed.
            managed_process_cmd([*_started(vllm), *serve_arguments(model_dir, adapters, port)]),
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(descriptor)
        self.base_url = f"http://127.0.0.1:{port}/v1"
        try:
            self._wait(f"http://127.0.0.1:{port}/health")
            self._ready = True
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Return when vLLM has ended."""
        self._process.wait()

    def close(self) -> None:
        """Stop vLLM and the processes that it started; safe to call twice."""
        from art.utils.lifecycle import terminate_popen_process_group

        terminate_popen_process_group(self._process, timeout=_STOP_SECONDS)
        if self._ready:
            self._log.unlink(missing_ok=True)

    def _wait(self, url: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise BadInput(f"vLLM did not start (exit code {code}): {self._last_line()}; its log is {self._log}")
            try:
                with DIRECT.open(url, timeout=5) as response:
                    if response.status == 200:
                        return
            except (URLError, OSError):
                pass  # not listening yet
            time.sleep(0.5)
        raise BadInput(f"vLLM was not ready within {_START_SECONDS:.0f} s; its log is {self._log}")

    def _last_line(self) -> str:
        lines = [line.strip() for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1][:200] if lines else "its log is empty"


def serve_arguments(model_dir: Path, adapters: Mapping[str, Path], port: int) -> list[str]:
    """Return the arguments of `vllm`.

    The context is the base's own, as with the torch engine: `max_context` bounds what is learnt from, not what is answered.
    """
    words = ["serve", str(model_dir), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", BASE]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--return-tokens-as-token-ids"]
    if template := replaced_template(model_dir):
        words += ["--chat-template", str(template)]
    words += ["--generation-config", "vllm"]  # a model's sampling defaults may differ from those of the training
    if adapters:
        ranks = [json.loads((path / ADAPTER_CONFIG).read_text(encoding="utf-8"))["r"] for path in adapters.values()]
        most = str(vllm_lora_rank(max(ranks)))
        words += ["--enable-lora", "--max-loras", str(len(adapters)), "--max-lora-rank", most, "--lora-modules"]
        words += [f"{name}={path}" for name, path in adapters.items()]
    return words


def _started(vllm: Path) -> list[str]:
    """Return the command of the script `vllm`.

    ART installs its environment elsewhere and renames it, so the first line of the script names a Python that is gone.
    """
    python = vllm.with_name("python")
    return [str(python), str(vllm)] if python.exists() else [str(vllm)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
