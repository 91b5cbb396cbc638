"""OpenAI-compatible HTTP in front of the engine, on loopback, in a thread of its own.

Differences from the hosted API: `logprobs.content[].token` is `token_id:<n>` (what ART needs to train on exactly the
sampled tokens) and log-probabilities are those of the plain distribution at temperature 1 whatever the temperature
was, as vLLM reports them. `prompt_cache_key` names a conversation: send one per rollout to keep apart conversations
whose texts are equal but whose sampled ids differ. `return_token_ids` adds `prompt_token_ids` to the response.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from transformers import AutoTokenizer

from training.backends.torch.conversation import ChatFormat
from training.backends.torch.engine import Completion, Engine, SamplingParams
from training.backends.torch.network import LoraAdapter, PolicyNetwork
from training.backends.torch.settings import TorchSettings
from training.errors import BadInput

BASE = "base"
_DEFAULT_MAX_TOKENS = 256


class UnknownModel(BadInput):
    """A request named a model that is not served."""


class ChatRequest(BaseModel):
    """The part of OpenAI's chat completion request that is understood; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    n: Literal[1] | None = None
    stream: bool | None = None
    logprobs: bool | None = None
    prompt_cache_key: str | None = None
    return_token_ids: bool | None = None


ResolveModel = Callable[[str], LoraAdapter | None]
"""Name in a request -> adapter to serve (`None`: the base); raises `UnknownModel`."""


def create_app(
    engine: Engine, chat: ChatFormat, resolve: ResolveModel, model_names: Callable[[], list[str]]
) -> FastAPI:
    """The HTTP application. `model_names` is what `/v1/models` lists."""
    app = FastAPI(title="policy server", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(BadInput)
    async def bad_input(_: Request, error: BadInput) -> JSONResponse:
        return _error(404 if isinstance(error, UnknownModel) else 400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return _error(400, f"{where or 'request body'}: {first['msg']}")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> dict[str, float]:
        return {
            **engine.counters,
            "busy_seconds": round(engine.busy_seconds, 3),
            "running": engine.running(),
            "waiting": engine.waiting(),
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "local"} for name in model_names()],
        }

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> JSONResponse:
        if body.stream:
            raise BadInput("stream: streaming is not supported; send the request without it.")
        adapter = resolve(body.model)
        tools = body.tools if body.tool_choice != "none" else None
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        prompt_ids = chat.encode(body.messages, tools, body.prompt_cache_key)
        future = engine.submit(
            prompt_ids,
            SamplingParams(
                max_tokens=_max_tokens(body, len(prompt_ids), engine.max_tokens),
                temperature=1.0 if body.temperature is None else body.temperature,
                top_p=1.0 if body.top_p is None else body.top_p,
                seed=body.seed,
            ),
            adapter,
            (lambda ids: any(stop in chat.decode(ids) for stop in stops)) if stops else None,
        )
        answer = asyncio.ensure_future(asyncio.wrap_future(future))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not answer.done():
                future.cancel()
        if not answer.done():
            return _error(499, "the client went away")
        completion = await answer
        text = chat.decode(completion.token_ids)
        for stop in stops:
            text = text.split(stop, 1)[0]
        reply = chat.parse(text, with_tools=bool(tools))
        chat.remember(body.messages, tools, prompt_ids, reply, completion.token_ids, body.prompt_cache_key)
        finish = "tool_calls" if reply.tool_calls else completion.finish_reason
        response = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.model,
            "choices": [
                {
                    "index": 0,
                    "message": {**reply.message(), "refusal": None},
                    "finish_reason": finish,
                    "logprobs": _logprobs(chat, completion) if body.logprobs else None,
                }
            ],
            "usage": {
                "prompt_tokens": len(prompt_ids),
                "completion_tokens": len(completion.token_ids),
                "total_tokens": len(prompt_ids) + len(completion.token_ids),
                "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
            },
        }
        if body.return_token_ids:
            response["prompt_token_ids"] = prompt_ids
        return JSONResponse(response)

    return app


def _max_tokens(body: ChatRequest, prompt_tokens: int, context: int) -> int:
    asked = body.max_completion_tokens or body.max_tokens
    return asked or max(1, min(_DEFAULT_MAX_TOKENS, context - prompt_tokens))


def _logprobs(chat: ChatFormat, completion: Completion) -> dict[str, Any]:
    content = []
    for index, (token, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        data: list[int] | None = chat.token_bytes(token)
        if index == 0 and not _is_text(data):
            data = None  # ART decodes the first token of a reply on its own and would fail on half a character
        content.append({"token": f"token_id:{token}", "logprob": logprob, "bytes": data, "top_logprobs": []})
    return {"content": content, "refusal": None}


def _is_text(data: list[int] | None) -> bool:
    try:
        bytes(data or []).decode()
    except UnicodeDecodeError:
        return False
    return True


def _error(status: int, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class HttpThread:
    """uvicorn on loopback in a background thread."""

    def __init__(self, app: FastAPI, port: int = 0) -> None:
        """Serve `app` on 127.0.0.1 at `port` (0: any free one). Raises `BadInput` when the port is taken."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError as error:
            self._socket.close()
            raise BadInput(f"Port {port} on 127.0.0.1 cannot be used: {error.strerror}. Choose another one.") from error
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        self._thread = threading.Thread(target=self._serve, name="policy-http", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)

    def _serve(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(self._server.serve(sockets=[self._socket]))

    def close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=10)
        self._socket.close()


class PolicyServer:
    """A base model and its adapters behind an OpenAI-compatible endpoint, for evaluation and deployment.

    `with PolicyServer(model_dir, {"trained": adapter_dir}) as server:` serves the models `base` and `trained` at
    `server.base_url`. Raises `BadInput` when a folder is incomplete or an adapter does not fit the base.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
        settings: TorchSettings | None = None,
        *,
        port: int = 0,
    ) -> None:
        settings = settings or TorchSettings()
        if BASE in (adapters or {}):
            raise BadInput(f"{BASE!r} names the untouched base model: give the adapter another name.")
        network = PolicyNetwork(model_dir, settings)
        self._adapters = {name: network.load_adapter(path) for name, path in (adapters or {}).items()}
        self._base_names = {BASE, str(model_dir), Path(model_dir).name}
        chat = ChatFormat(AutoTokenizer.from_pretrained(model_dir))
        self._engine = Engine(network, settings)
        app = create_app(self._engine, chat, self._resolve, lambda: [BASE, *self._adapters])
        try:
            self._http = HttpThread(app, port)
        except BadInput:
            self._engine.close()
            raise
        self.base_url = f"http://127.0.0.1:{self._http.port}/v1"

    def _resolve(self, name: str) -> LoraAdapter | None:
        if name in self._adapters:
            return self._adapters[name]
        if name in self._base_names:
            return None
        raise UnknownModel(f"There is no model {name!r} here; served are {', '.join([BASE, *self._adapters])}.")

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; safe to call twice."""
        self._http.close()
        self._engine.close()
