"""vLLM as ART and `training.backends.serving` start and ask it: its options, routes and sleep. The torch engine answers on a CPU.

ART's own server runs it (`art_vllm_runtime.dedicated_server`). An option, adapter or request that vLLM would refuse is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from training.backends.prompt_template import load_tokenizer
from training.backends.torch import TorchSettings
from training.backends.torch.chat_format import ChatFormat
from training.backends.torch.engine import Engine
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import load_network
from training.backends.torch.server import UnknownModel, create_app


def make_arg_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    for option in ("--model", "--host", "--served-model-name", "--tool-call-parser", "--generation-config"):
        parser.add_argument(option, required=True)
    parser.add_argument("--port", type=int, required=True)
    for option in ("--max-loras", "--max-lora-rank", "--max-model-len"):
        parser.add_argument(option, type=int)
    for option in ("--enable-auto-tool-choice", "--return-tokens-as-token-ids"):
        parser.add_argument(option, action="store_true", required=True)
    for option in ("--enable-lora", "--enable-sleep-mode"):
        parser.add_argument(option, action="store_true")
    for option in ("--lora-modules", "--lora-target-modules"):
        parser.add_argument(option, nargs="+", default=[])
    for option in ("--allowed-local-media-path", "--chat-template"):
        parser.add_argument(option)
    return parser


def validate_parsed_serve_args(asked: argparse.Namespace) -> None:
    assert asked.tool_call_parser == "hermes" and asked.generation_config == "vllm"
    assert asked.enable_lora or not asked.lora_modules


class EngineClient:
    """A model that sleeps has given its memory away: it cannot be asked."""

    def __init__(self, may_sleep: bool) -> None:
        self.may_sleep = may_sleep
        self.asleep = False

    async def sleep(self, level: int, mode: str) -> None:
        if not self.may_sleep:
            raise ValueError("sleep mode is not enabled")
        self.asleep = True
        said("sleeps")

    async def wake_up(self) -> None:
        self.asleep = False
        said("wakes up")


class Adapters:
    def __init__(self, asked: argparse.Namespace, load: Callable[[str], LoraAdapter]) -> None:
        self.asked = asked
        self.load = load
        self.by_name: dict[str, LoraAdapter] = {}

    def add(self, name: str, path: str, in_place: bool = False) -> None:
        """Raises ValueError where vLLM does."""
        config = json.loads((Path(path) / "adapter_config.json").read_text())
        others = set(config["target_modules"]) - set(self.asked.lora_target_modules or config["target_modules"])
        if config["r"] > (self.asked.max_lora_rank or 16) or others or (name in self.by_name and not in_place):
            raise ValueError(f"LoRA {name}: rank {config['r']}, modules {others}")
        self.by_name[name] = self.load(path)
        said(f"loads {name}")


def build_app(asked: argparse.Namespace) -> FastAPI:
    settings = TorchSettings(device="cpu", matmul_dtype="float32")  # as the stand-in for Unsloth
    network = load_network(asked.model, settings)
    engine = Engine(network, settings)
    adapters = Adapters(asked, network.load_adapter)
    for module in asked.lora_modules:
        adapters.add(*module.split("=", 1))

    def resolve(name: str) -> LoraAdapter | None:
        if name not in adapters.by_name and name != asked.served_model_name:
            raise UnknownModel(f"The model `{name}` does not exist.")
        return adapters.by_name.get(name)

    names = lambda: [asked.served_model_name, *adapters.by_name]  # noqa: E731
    app = create_app(engine, ChatFormat(load_tokenizer(asked.model)), resolve, names)
    app.state.engine_client = EngineClient(asked.enable_sleep_mode)
    app.state.openai_serving_models = SimpleNamespace(base_model_paths=[SimpleNamespace(name=asked.served_model_name)])

    @app.middleware("http")
    async def awake(request: Request, answer: Any) -> Response:
        if app.state.engine_client.asleep and request.url.path == "/v1/chat/completions":
            said("was asked in its sleep")
            return JSONResponse({"error": {"message": "asleep"}}, 500)
        return await answer(request)

    @app.post("/v1/load_lora_adapter")
    async def load_lora_adapter(request: Request) -> Response:
        body = await request.json()
        try:
            adapters.add(body["lora_name"], body["lora_path"], body["load_inplace"])
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        return JSONResponse("loaded")

    @app.post("/v1/unload_lora_adapter")
    async def unload_lora_adapter(request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if adapters.by_name.pop(name, None) is None:
            return JSONResponse({"error": {"message": f"{name} is not loaded"}}, 404)
        said(f"unloads {name}")
        return JSONResponse("unloaded")

    return app


async def run_server(asked: argparse.Namespace) -> None:
    said(f"serves on GPU {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    app = importlib.import_module("vllm.entrypoints.openai.api_server").build_app(asked)  # which ART has replaced
    await uvicorn.Server(uvicorn.Config(app, asked.host, asked.port, log_level="warning")).serve()


def main() -> None:
    """`vllm serve MODEL --option ...`"""
    parser = argparse.ArgumentParser()
    serve = make_arg_parser(parser.add_subparsers(required=True).add_parser("serve"))
    serve.add_argument("model")
    next(action for action in serve._actions if "--model" in action.option_strings).required = False
    asked = parser.parse_args()
    validate_parsed_serve_args(asked)
    asyncio.run(run_server(asked))


def said(line: str) -> None:
    print(f"vllm {line}", flush=True)
