"""Convert chat messages to token ids and back. Earlier replies keep their sampled ids.

Tokenizing the rendered text of a conversation does not always restore the sampled ids. The ids of every reply are therefore
stored under the text of the conversation up to it. A later request that contains this conversation starts from them and
tokenizes only the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from training.backends.prompt_template import render, template_options, tokenize_rendered
from training.backends.torch.tool_calls import HermesCalls, Schema, ToolCall, Tools, call_form, open_end
from training.errors import BadInput

_REMEMBERED = 4_096
Message = Mapping[str, Any]
"""A message as a client sends it, before it is checked."""


@dataclass(frozen=True)
class ParsedReply:
    """A sampled text as an OpenAI message: `content` is the text outside `tool_calls`."""

    content: str | None
    tool_calls: list[ToolCall]

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message


class ChatFormat:
    """The chat template of one tokenizer, with a memory of the sampled ids of each reply."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not isinstance(tokenizer.chat_template, str):
            raise BadInput("The model's tokenizer has no chat template: add chat_template.jinja to its folder.")
        self.tokenizer = tokenizer
        self.calls = call_form(tokenizer.chat_template)
        self._memory: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self.special_ids = frozenset(tokenizer.all_special_ids)
        self._byte_of = {char: byte for byte, char in _bytes_to_unicode().items()}

    def render(self, messages: Sequence[Message], tools: Tools | None, *, open_reply: bool) -> str:
        """Return the conversation as text for `tokenize`. With `open_reply` it ends where the next assistant message begins."""
        try:
            text = render(
                self.tokenizer,
                [self._canonical(message) for message in messages],
                [ordered_tool(tool) for tool in tools] if tools else None,
                add_generation_prompt=open_reply,
                **template_options(self.tokenizer),
            )
        except BadInput:
            raise
        except Exception as error:  # templates are programs: their functions raise errors of any kind
            raise BadInput(f"The chat template cannot render these messages: {error}") from error
        return text

    def encode(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        conversation: str | None = None,
    ) -> list[int]:
        """Return the prompt ids for the next reply. Replies known from `remember` keep their sampled ids.

        `conversation` distinguishes conversations with equal text but different sampled ids: see `_memory_keys`.
        """
        text = self.render(messages, tools, open_reply=True)
        for end in range(len(messages), 0, -1):
            if messages[end - 1].get("role") != "assistant":
                continue
            known = self.render(messages[:end], tools, open_reply=False)
            for key in _memory_keys(known, messages[:end], conversation):
                ids = self._memory.get(key)
                if ids is not None and text.startswith(known):
                    self._memory.move_to_end(key)
                    return [*ids, *self.tokenize(text[len(known) :])]
        return self.tokenize(text)

    def remember(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        prompt_ids: Sequence[int],
        reply: ParsedReply,
        sampled_ids: Sequence[int],
        conversation: str | None = None,
    ) -> None:
        """Store the ids of a conversation extended by `reply`, which was sampled as `sampled_ids`."""
        extended = [*messages, reply.message()]
        text = self.render(extended, tools, open_reply=False)
        # What the template writes after a reply: the end token, unless it was sampled, and a line break.
        closing = self._closing(text)
        if closing and sampled_ids and sampled_ids[-1] == closing[0]:
            closing = closing[1:]
        ids = (*prompt_ids, *sampled_ids, *closing)
        for key in _memory_keys(text, extended, conversation):
            self._memory[key] = ids
            self._memory.move_to_end(key)
        while len(self._memory) > _REMEMBERED:
            self._memory.popitem(last=False)

    def parse(self, text: str, tools: Tools | None) -> ParsedReply:
        """Split the tool calls from a reply. A malformed call leaves the reply plain text, as does a request without tools."""
        parts = self.calls.split(text, tools) if tools else None
        return ParsedReply(text, []) if parts is None else ParsedReply(parts[0].rstrip() or None, parts[1])

    def settled(self, text: str, stops: Sequence[str], with_tools: bool) -> str:
        """Return the part of an unfinished reply that further tokens cannot change.

        The end is left out if it may be half a character, the beginning of a stop sequence or, `with_tools`, of a call.
        """
        text = text.rstrip("\N{REPLACEMENT CHARACTER}")
        end = min((open_end(text, stop) for stop in stops), default=len(text))
        if not with_tools:
            return text[:end]
        return text[: min(end, self.calls.open_end(text))].rstrip()  # `parse` drops the space before a call

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def token_bytes(self, token_id: int) -> list[int]:
        """Return the bytes of a token, possibly a part of a character."""
        token = self.tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return []
        if token_id in self.special_ids or any(char not in self._byte_of for char in token):
            return list(self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False).encode())
        return [self._byte_of[char] for char in token]

    def tokenize(self, text: str) -> list[int]:
        return tokenize_rendered(self.tokenizer, text)

    def _canonical(self, message: Message) -> dict[str, Any]:
        """Return a message as the template expects it. Calls that demonstrations spell out in Hermes form become calls."""
        plain = _plain(message)
        spelled_out = plain["role"] == "assistant" and "tool_calls" not in plain
        if spelled_out and not isinstance(self.calls, HermesCalls):
            parts = HermesCalls().split(plain["content"], [])
            if parts is not None:
                plain["content"] = parts[0].rstrip()
                plain["tool_calls"] = [_plain_call(call) for call in parts[1]]
        return plain

    def _closing(self, text: str) -> list[int]:
        """Return the ids of the text after the last reply: from the last special token to the end."""
        ids = self.tokenize(text[-32:])
        special = [i for i, token in enumerate(ids) if token in self.special_ids]
        return ids[special[-1] :] if special else []


def ordered_tool(tool: Schema) -> dict[str, Any]:
    """Return a tool with its keys in ART's `vllm_openai` order, so that serving and training render the same text."""
    if tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        return dict(tool)
    function = tool["function"]
    first = [key for key in ("name", "description", "parameters", "strict") if key in function]
    rest = [key for key in function if key not in first]
    ordered = {"type": "function", "function": {key: function[key] for key in [*first, *rest]}}
    return {**ordered, **{key: value for key, value in tool.items() if key not in ordered}}


def _plain(message: Message) -> dict[str, Any]:
    """Return a message in the form that templates expect. Raises `BadInput` if it is malformed."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") or "" for part in content if isinstance(part, Mapping)]
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str | None):
        raise BadInput(f"The content of a message is {content!r}; expected text or a list of parts")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise BadInput(f"The role of a message is {message.get('role')!r}; expected text")
    plain = {"role": message["role"], "content": content or ""}
    for key in ("name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            raise BadInput(f"The {key} of a message is {message[key]!r}; expected text")
        if message.get(key):
            plain[key] = message[key]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(
        isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) for call in calls
    ):
        raise BadInput(f"The tool_calls of a message are {str(calls)[:80]}; expected a list of objects with a function")
    if calls:
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": _canonical_function(call["function"])}


def _canonical_function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"The arguments of a tool call are not JSON: {arguments[:80]!r}") from error
    if not isinstance(function.get("name"), str):
        raise BadInput(f"The name of a called function is {function.get('name')!r}; expected text")
    return {"name": function["name"], "arguments": arguments if arguments is not None else {}}


def _memory_keys(text: str, messages: Sequence[Message], conversation: str | None) -> list[str]:
    """Return the key of this conversation, or without a name those of its call ids and of its text.

    A named conversation knows its own replies only. Under a new name, earlier replies are tokenized as text, as they are by
    ART when they are not trained on.
    """
    calls = [call.get("id") for message in messages for call in message.get("tool_calls") or []]
    marks = [f"call:{calls}"] if calls and all(calls) else []
    marks = [f"conversation:{conversation}"] if conversation else [*marks, ""]
    return [hashlib.sha256(f"{mark}\n{text}".encode()).hexdigest() for mark in marks]


def _bytes_to_unicode() -> dict[int, str]:
    """Return the printable stand-ins for bytes in byte-level BPE vocabularies (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in table]
    return {**table, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
