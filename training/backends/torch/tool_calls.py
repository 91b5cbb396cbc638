"""The two forms in which policies write tool calls: Hermes JSON, and the compact one of our own chat template.

A compact call is one line: `>>search "a text" 3`. The name is the shortest beginning of the tool's name, in words, that no other
tool shares. The required arguments follow in the order of the schema, each as JSON; a list of one item is written as the
item. All other calls are `>>name={"argument": value}`. JSON has no line breaks, so nothing inside a call can begin another.
"""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from training.backends.model_sources.folder import COMPACT_CALLS

Schema = Mapping[str, Any]
"""A tool, its function or a part of its parameters, in JSON Schema."""
Tools = Sequence[Schema]
_AS_TEMPLATES_WRITE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_PLAIN_SCHEMA = {"type", "properties", "required", "additionalProperties", "title", "description"}
_MOST_NESTED = 64
"""Of a call's arguments. Templates and encoders of JSON recurse."""
_decoder = json.JSONDecoder()


class CalledFunction(TypedDict):
    name: str
    arguments: str
    """In JSON."""


class ToolCall(TypedDict):
    """A call in OpenAI's form."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CallForm(ABC):
    """How a chat template writes tool calls."""

    begins: str
    """The text with which a call begins."""

    @abstractmethod
    def split(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]] | None:
        """Return the text before the calls and the calls in OpenAI's form. None if there are none or one is malformed."""

    @abstractmethod
    def open_end(self, text: str) -> int:
        """Return where a call begins in `text`, complete or cut off by the end of `text`; without one, the length of `text`."""

    @abstractmethod
    def grammar(self, functions: Tools, tools: Tools, mark: Callable[[str], str]) -> str:
        """Return the Lark grammar of one call of `functions`. `mark` writes a text that may be a token as a terminal."""


def call_form(chat_template: str) -> CallForm:
    """Return the form that a chat template writes."""
    return CompactCalls() if COMPACT_CALLS in chat_template else HermesCalls()


class HermesCalls(CallForm):
    """JSON objects between tags, as in Hermes and Qwen."""

    begins = "<tool_call>"
    ends = "</tool_call>"
    _SPACE = re.compile(r"\s*")

    def split(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]] | None:
        calls = []
        first = begin = text.find(self.begins)
        while begin >= 0:
            # The tags may also stand in the texts of a call, so JSON says where it ends.
            try:
                call, end = _decoder.raw_decode(text, self._after_space(text, begin + len(self.begins)))
            except (ValueError, RecursionError):
                return None
            if not isinstance(call, dict) or (made := _call(call.get("name"), call.get("arguments", {}))) is None:
                return None
            end = self._after_space(text, end)
            if not text.startswith(self.ends, end) and end < len(text):
                return None
            calls.append(made)
            begin = text.find(self.begins, end)
        return (text[:first], calls) if calls else None

    def _after_space(self, text: str, position: int) -> int:
        found = self._SPACE.match(text, position)
        return found.end() if found else position

    def open_end(self, text: str) -> int:
        return open_end(text, self.begins)

    def grammar(self, functions: Tools, tools: Tools, mark: Callable[[str], str]) -> str:
        rules = [f"start: {' | '.join(f'call{i}' for i in range(len(functions)))}"]
        for i, function in enumerate(functions):
            opening = json.dumps(f'\n{{"name": {json.dumps(function["name"])}, "arguments": ')
            parts = [mark("<tool_call>"), opening, f"arguments{i}", json.dumps("}\n"), mark("</tool_call>")]
            rules.append(f"call{i}: {' '.join(parts)}")
            rules.append(f"arguments{i}: {_whole(_parameters(function))}")
        return "\n".join(rules)


class CompactCalls(CallForm):
    """Lines of a short name and the values of the required arguments; see the module's docstring."""

    begins = ">>"
    _LINE = re.compile(r"^>>", re.MULTILINE)

    def split(self, text: str, tools: Tools) -> tuple[str, list[ToolCall]] | None:
        first = self._LINE.search(text)
        if first is None:
            return None
        functions = {short_name(f["name"], tools): f for tool in tools if (f := tool.get("function") or {}).get("name")}
        calls = []
        for line in text[first.start() :].split("\n"):
            if line.strip():
                call = _compact_call(line, functions)
                if call is None:
                    return None
                calls.append(call)
        return text[: first.start()], calls

    def open_end(self, text: str) -> int:
        first = self._LINE.search(text)
        if first is not None:
            return first.start()
        return len(text) - 1 if text == ">" or text.endswith("\n>") else len(text)

    def grammar(self, functions: Tools, tools: Tools, mark: Callable[[str], str]) -> str:
        choices, rules = [], []
        for i, function in enumerate(functions):
            name, parameters = short_name(function["name"], tools), _parameters(function)
            properties = _properties(function)
            required = _required(function)
            simple = not set(parameters) - _PLAIN_SCHEMA and all(isinstance(properties[p], Mapping) for p in required)
            if simple and '"$ref"' not in json.dumps(parameters):
                parts = [json.dumps(f">>{name}")]
                for j, argument in enumerate(required):
                    parts += [json.dumps(" "), f"value{i}_{j}"]
                    rules.append(f"value{i}_{j}: {' | '.join(_values(properties[argument]))}")
                choices.append(" ".join(parts))
            if not choices or not simple or len(properties) > len(required):
                choices.append(f"{json.dumps(f'>>{name}=')} arguments{i}")
                rules.append(f"arguments{i}: {_whole(parameters)}")
        return "\n".join([f"start: {' | '.join(f'({choice})' for choice in choices)}", *rules])


def short_name(name: str, tools: Tools) -> str:
    """Return the name of one of the `tools` in a compact call, as the template writes it. Other names are JSON."""
    others = [other for tool in tools if (other := (tool.get("function") or {}).get("name")) not in (None, name)]
    words = name.split("_")
    for count in range(1, len(words)):
        first = "_".join(words[:count])
        taken = any(first in (other, "_".join(other.split("_")[:count])) for other in others)
        if not taken and first.isidentifier():
            return first
    return name if name.replace("-", "_").isidentifier() else json.dumps(name, ensure_ascii=False)


def open_end(text: str, mark: str) -> int:
    """Return where `mark` begins in `text`, complete or cut off by the end of `text`; without one, the length of `text`."""
    found = text.find(mark)
    if found >= 0:
        return found
    longest = min(len(mark) - 1, len(text))
    return len(text) - next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)


def _compact_call(line: str, functions: Mapping[str, Schema]) -> ToolCall | None:
    if not line.startswith(">>"):
        return None
    name = re.match(r"[^\W\d][\w-]*", line[2:])
    if name is not None:
        written, end = name[0], 2 + name.end()
    else:
        try:
            written, end = _decoder.raw_decode(line, 2)
        except (ValueError, RecursionError):
            return None
        if not isinstance(written, str):
            return None
    function = functions.get(json.dumps(written, ensure_ascii=False) if name is None else written)
    if line[end : end + 1] == "=":
        return _call(function["name"] if function else written, _json(line[end + 1 :]))
    if function is None:
        return None
    values: list[Any] = []
    rest = line[end:].rstrip()
    position = 0
    while position < len(rest):
        if rest[position] != " ":
            return None
        try:
            value, position = _decoder.raw_decode(rest, position + 1)
        except (ValueError, RecursionError):
            return None
        values.append(value)
    required, properties = _required(function), _properties(function)
    if len(values) != len(required):
        return None
    return _call(
        function["name"],
        {
            argument: [value] if _is_array(properties[argument]) and not isinstance(value, list) else value
            for argument, value in zip(required, values, strict=True)
        },
    )


def _call(name: object, arguments: object) -> ToolCall | None:
    """Return a call in OpenAI's form, None if it cannot be one."""
    if not isinstance(name, str) or not isinstance(arguments, dict) or nested_deeper(arguments, _MOST_NESTED):
        return None
    function = CalledFunction(name=name, arguments=json.dumps(arguments, ensure_ascii=False))
    if any("\ud800" <= character <= "\udfff" for character in name + function["arguments"]):
        return None  # half of an escaped character, which no reply can carry
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def nested_deeper(value: object, levels: int) -> bool:
    """Return whether objects and lists are nested deeper than `levels`."""
    inner = [value]
    for _ in range(levels + 1):
        inner = [
            item for v in inner if isinstance(v, dict | list) for item in (v.values() if isinstance(v, dict) else v)
        ]
        if not inner:
            return False
    return True


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parameters(function: Schema) -> Schema:
    return function.get("parameters") or {"properties": {}, "additionalProperties": False}


def _properties(function: Schema) -> Schema:
    return (function.get("parameters") or {}).get("properties") or {}


def _required(function: Schema) -> list[str]:
    """Return the required arguments that the schema describes, in its order."""
    required = (function.get("parameters") or {}).get("required") or []
    return [name for name in _properties(function) if name in required]


def _is_array(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "array"


def _whole(parameters: Schema) -> str:
    return _as_rule({"type": "object", **parameters})


def _values(schema: Schema) -> list[str]:
    """Return the rules of the texts that stand for an argument."""
    items = schema.get("items")
    may_be_one = _is_array(schema) and isinstance(items, Mapping) and items.get("type") not in (None, "array")
    one = may_be_one and schema.get("minItems", 0) <= 1 <= schema.get("maxItems", 1)
    return [_as_rule(schema), *([_as_rule(items)] if one and isinstance(items, Mapping) else [])]


def _as_rule(schema: Schema) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _AS_TEMPLATES_WRITE})}"
