"""One chat completion request: submit its prompt `n` times, return the replies whole or as a stream."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from training.backends.torch.chat_format import ChatFormat
from training.backends.torch.engine import Completion, Engine, SamplingParams
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.tool_calls import nested_deeper
from training.backends.torch.tool_grammar import ANY_TOOL, ToolGrammar
from training.errors import BadInput

_DEFAULT_MAX_TOKENS = 256
Stop = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """`include_usage` adds a last chunk that has the usage and no choices."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


_IGNORED = frozenset(
    {
        *(
            "metadata",
            "prediction",
            "priority",
            "prompt_cache_retention",
            "request_id",
            "safety_identifier",
            "service_tier",
        ),
        *("store", "top_logprobs", "user"),
    }
)
"""Fields without effect on what is sampled."""
Payload = dict[str, Any]  # a response in OpenAI's form, or a part of one
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "function_call": ("auto", "none"),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "top_k": (-1, 0),
}
"""Values with which a field changes nothing, where that is not 0, false or nothing."""
_MOST_NESTED = 128


class ChatRequest(BaseModel):
    """The supported fields of OpenAI's chat completion request, and vLLM's `min_p`.

    A field that would change what is sampled and is not supported is refused.
    """

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Stop | list[Stop] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int | None = Field(default=None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    prompt_cache_key: str | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _texts_are_whole(cls, request: Any) -> Any:
        """Refuse half characters, which no tokenizer reads, and what is nested too deep for templates."""
        if nested_deeper(request, _MOST_NESTED):
            raise ValueError(f"nested deeper than {_MOST_NESTED} levels")
        left = [("", request)]
        while left:
            place, value = left.pop()
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                where = place.encode("ascii", "backslashreplace").decode()
                raise ValueError(f"{where}: half of a character (a lone surrogate)")
            if isinstance(value, dict):
                left += [(f"{place}.{key}".lstrip("."), part) for key, item in value.items() for part in (key, item)]
            elif isinstance(value, list):
                left += [(f"{place}.{index}", item) for index, item in enumerate(value)]
        return request

    @field_validator("tools")
    @classmethod
    def _tools_are_functions(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for index, tool in enumerate(tools or []):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
                raise ValueError(f"{index}.function.name: expected text")
            for part, kind in (("description", str), ("parameters", dict)):
                if function.get(part) is not None and not isinstance(function[part], kind):
                    raise ValueError(f"{index}.function.{part}: expected {'text' if kind is str else 'a JSON schema'}")
        return tools

    @model_validator(mode="after")
    def _unsupported_is_refused(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            neutral = value in _NEUTRAL[name] if name in _NEUTRAL else value in (0, "", [], {})
            if name not in _IGNORED and value is not None and not neutral:
                raise ValueError(f"{name}: this server does not support it, and it would change what is sampled")
        return self


@dataclass
class _Streamed:
    """The sampled part of a reply, and how much of it has been sent."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text_sent: int = 0
    tokens_sent: int = 0


class ChatCompletion:
    """The replies to `request`. Sampling starts when this object is created."""

    def __init__(
        self,
        request: ChatRequest,
        engine: Engine,
        chat: ChatFormat,
        grammar: ToolGrammar,
        adapter: LoraAdapter | None,
    ) -> None:
        """Create it in a running event loop. Raises `BadInput` if prompt and reply do not fit, or if the required call
        is impossible.
        """
        self._request = request
        self._chat = chat
        self._tools = request.tools if request.tool_choice != "none" else None
        self._stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        self._prompt_ids = chat.encode(request.messages, self._tools, request.prompt_cache_key)
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        loop = asyncio.get_running_loop()
        # (index of a reply, its next token with log-probability, or `None` when the reply has ended)
        self._sampled: asyncio.Queue[tuple[int, tuple[int, float] | None]] = asyncio.Queue()

        def sampled(index: int, token: int, logprob: float) -> None:  # on the engine's thread, as is `ended`
            loop.call_soon_threadsafe(self._sampled.put_nowait, (index, (token, logprob)))

        def ended(index: int, _: Future[Completion]) -> None:
            loop.call_soon_threadsafe(self._sampled.put_nowait, (index, None))

        self._futures: list[Future[Completion]] = []
        name = _required_call(request.tool_choice)
        for index in range(request.n or 1):
            future = engine.submit(
                self._prompt_ids,
                self._sampling_params(index, engine.max_tokens),
                adapter,
                self._stops_here if self._stops else None,
                partial(sampled, index) if request.stream else None,
                # Each reply has its own grammar state.
                None if name is None else grammar.one_call(self._tools or [], name),
            )
            self._futures.append(future)
            if request.stream:
                future.add_done_callback(partial(ended, index))

    def cancel(self) -> None:
        """Cancel the incomplete replies, which frees their places."""
        for future in self._futures:
            future.cancel()

    async def response(self) -> Payload | None:
        """Return the whole response; `None` when it was cancelled."""
        outcomes = await asyncio.gather(*map(asyncio.wrap_future, self._futures), return_exceptions=True)
        if any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes):
            return None
        choices = [self._choice(index, future.result()) for index, future in enumerate(self._futures)]
        return {**self._envelope("chat.completion", choices), "usage": self._usage(), **self._prompt_token_ids()}

    async def chunks(self) -> AsyncIterator[Payload]:
        """Yield the response in chunks, as OpenAI streams it. End early when cancelled. Needs `request.stream`.

        The chunks add up to the whole response. Text is therefore held back while it may begin a stop sequence or a tool
        call, and tool calls are sent when the reply is complete, because one malformed call turns all of them into text.
        """
        streamed = [_Streamed() for _ in self._futures]
        for index in range(len(streamed)):
            yield {**self._chunk(index, {"role": "assistant", "content": None}), **self._prompt_token_ids()}
        unfinished = len(streamed)
        while unfinished:
            index, sampled = await self._sampled.get()
            reply = streamed[index]
            if sampled is not None:
                reply.token_ids.append(sampled[0])
                reply.logprobs.append(sampled[1])
                text = self._chat.settled(self._chat.decode(reply.token_ids), self._stops, bool(self._tools))
                if len(text) > reply.text_sent:
                    delta = {"content": text[reply.text_sent :]}
                    reply.text_sent = len(text)
                    yield self._chunk(index, delta, logprobs=self._unsent_logprobs(reply))
                elif unsent := self._unsent_logprobs(reply):
                    yield self._chunk(index, {}, logprobs=unsent)  # the parts of a call that is still being sampled
                continue
            if self._futures[index].cancelled():
                return
            unfinished -= 1
            choice = self._choice(index, self._futures[index].result())
            content = choice["message"]["content"]
            if content is not None and (len(content) > reply.text_sent or not content):
                yield self._chunk(index, {"content": content[reply.text_sent :]}, logprobs=self._unsent_logprobs(reply))
            for position, call in enumerate(choice["message"].get("tool_calls", [])):
                calls = {"tool_calls": [{"index": position, **call}]}
                yield self._chunk(index, calls, logprobs=self._unsent_logprobs(reply))
            yield self._chunk(index, {}, choice["finish_reason"], self._unsent_logprobs(reply))
        if self._includes_usage:
            yield {**self._envelope("chat.completion.chunk", []), "usage": self._usage()}

    def _sampling_params(self, index: int, context: int) -> SamplingParams:
        request = self._request
        default = max(1, min(_DEFAULT_MAX_TOKENS, context - len(self._prompt_ids)))
        return SamplingParams(
            max_tokens=request.max_completion_tokens or request.max_tokens or default,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            min_p=request.min_p or 0.0,
            seed=None if request.seed is None else request.seed + index,
        )

    def _stops_here(self, token_ids: list[int]) -> bool:
        text = self._chat.decode(token_ids)
        return any(stop in text for stop in self._stops)

    def _choice(self, index: int, completion: Completion) -> Payload:
        """Return a complete reply, and remember its ids for the next turn."""
        request = self._request
        text = self._chat.decode(completion.token_ids)
        whole = text
        for stop in self._stops:
            text = text.split(stop, 1)[0]
        reply = self._chat.parse(text, self._tools)
        if text == whole:  # otherwise the ids say more than the reply
            self._chat.remember(
                request.messages, self._tools, self._prompt_ids, reply, completion.token_ids, request.prompt_cache_key
            )
        logprobs = _logprobs(self._chat, completion.token_ids, completion.logprobs) if request.logprobs else None
        return {
            "index": index,
            "message": {**reply.message(), "refusal": None},
            "finish_reason": "tool_calls" if reply.tool_calls else completion.finish_reason,
            "logprobs": logprobs,
        }

    def _chunk(
        self,
        index: int,
        delta: Payload,
        finish_reason: str | None = None,
        logprobs: Payload | None = None,
    ) -> Payload:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        chunk = self._envelope("chat.completion.chunk", [choice])
        return {**chunk, "usage": None} if self._includes_usage else chunk

    def _envelope(self, kind: str, choices: list[Payload]) -> Payload:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
        }

    def _usage(self) -> Payload:
        completions = [future.result() for future in self._futures]
        prompt, sampled = len(self._prompt_ids), sum(len(completion.token_ids) for completion in completions)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            # The other replies reuse the prompt that the first one computed.
            "prompt_tokens_details": {"cached_tokens": completions[0].cached_tokens},
        }

    def _prompt_token_ids(self) -> dict[str, list[int]]:
        return {"prompt_token_ids": self._prompt_ids} if self._request.return_token_ids else {}

    @property
    def _includes_usage(self) -> bool:
        return bool(self._request.stream_options and self._request.stream_options.include_usage)

    def _unsent_logprobs(self, reply: _Streamed) -> Payload | None:
        first, reply.tokens_sent = reply.tokens_sent, len(reply.token_ids)
        if not self._request.logprobs or first == reply.tokens_sent:
            return None
        return _logprobs(self._chat, reply.token_ids, reply.logprobs, first)


def _required_call(tool_choice: str | dict[str, Any]) -> str | None:
    """Return the name of the tool that must be called, `ANY_TOOL`, or `None` if no call is required."""
    if isinstance(tool_choice, dict):
        function = tool_choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise BadInput('tool_choice: expected {"type": "function", "function": {"name": NAME}}.')
        return name
    if tool_choice not in ("none", "auto", "required"):
        raise BadInput(f"tool_choice: expected none, auto, required or a function, not {tool_choice!r}.")
    return ANY_TOOL if tool_choice == "required" else None


def _logprobs(chat: ChatFormat, token_ids: list[int], logprobs: list[float], first: int = 0) -> Payload:
    """OpenAI's entries for the tokens of a reply from `first` on."""
    content = []
    for index in range(first, len(token_ids)):
        data: list[int] | None = chat.token_bytes(token_ids[index])
        if index == 0 and not _is_text(data):
            data = None  # ART decodes the first token of a reply on its own and would fail on half a character
        token = f"token_id:{token_ids[index]}"
        content.append({"token": token, "logprob": logprobs[index], "bytes": data, "top_logprobs": []})
    return {"content": content, "refusal": None}


def _is_text(data: list[int] | None) -> bool:
    try:
        bytes(data or []).decode()
    except UnicodeDecodeError:
        return False
    return True
