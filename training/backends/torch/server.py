"""OpenAI-compatible HTTP server of the engine, on loopback, in its own thread.

Differences from the hosted API: `logprobs.content[].token` is `token_id:<n>` (what ART needs to train on exactly the
sampled tokens), and log-probabilities are those at temperature 1 for any sampling temperature, as in vLLM.
`prompt_cache_key` names a conversation: send one per rollout to distinguish conversations with equal text but different
sampled ids. `return_token_ids` adds `prompt_token_ids` to the response (to the first chunk when streaming). With a seed,
reply i of `n` uses `seed + i`.

`tool_choice` `required`, or the name of a function, restricts sampling to one valid call. Log-probabilities are then those
of the restricted distribution. An update computes others, so do not train on such replies.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

from training.backends.prompt_template import load_tokenizer
from training.backends.torch.chat_completion import ChatCompletion, ChatRequest
from training.backends.torch.chat_format import ChatFormat
from training.backends.torch.engine import Engine
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import load_network
from training.backends.torch.settings import TorchSettings
from training.backends.torch.tool_grammar import ToolGrammar
from training.errors import BadInput

BASE = "base"


class UnknownModel(BadInput):
    """A request named a model that is not served."""


ResolveModel = Callable[[str], LoraAdapter | None]
"""Name in a request -> adapter to serve (`None`: the base); raises `UnknownModel`."""


def create_app(
    engine: Engine, chat: ChatFormat, resolve: ResolveModel, model_names: Callable[[], list[str]]
) -> FastAPI:
    """Return the HTTP application. `model_names` is what `/v1/models` lists."""
    grammar = ToolGrammar(chat.tokenizer, engine.network.config.vocab_size)
    app = FastAPI(title="policy server", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(BadInput)
    async def bad_input(_: Request, error: BadInput) -> JSONResponse:
        return _error(404 if isinstance(error, UnknownModel) else 400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        problem = first["msg"].removeprefix("Value error, ")
        whole = first["type"] == "value_error" and not where  # names its field itself
        return _error(400, problem if whole else f"{where or 'request body'}: {problem}")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> dict[str, float]:
        return {
            **engine.counters,
            "busy_seconds": round(engine.busy_seconds, 3),
            "update_seconds": round(engine.update_seconds, 3),
            "running": engine.running(),
            "waiting": engine.waiting(),
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": name, "object": "model", "created": 0, "owned_by": "local"} for name in model_names()],
        }

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        completion = ChatCompletion(body, engine, chat, grammar, resolve(body.model))
        gone = asyncio.ensure_future(_disconnected(request))
        gone.add_done_callback(lambda _: completion.cancel())  # does nothing if everything has been sampled
        if body.stream:
            return StreamingResponse(_events(completion, gone), media_type="text/event-stream")
        try:
            response = await completion.response()
        finally:
            gone.cancel()
        return _error(499, "the client went away") if response is None else JSONResponse(response)

    return app


async def _events(completion: ChatCompletion, gone: asyncio.Future[None]) -> AsyncIterator[str]:
    """Server-sent events; `gone` ends when the client goes away, and is ended here."""
    try:
        async for chunk in completion.chunks():
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"
    except Exception as error:  # the status has been sent, so an event is the only way left to report the error
        yield f"data: {json.dumps(_error_body(500, str(error)))}\n\n"
        raise
    finally:
        gone.cancel()


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse(_error_body(status, message), status)


def _error_body(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


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
        network = load_network(model_dir, settings)
        self._adapters = {name: network.load_adapter(path) for name, path in (adapters or {}).items()}
        self._base_names = {BASE, str(model_dir), Path(model_dir).name}
        chat = ChatFormat(load_tokenizer(model_dir))
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
