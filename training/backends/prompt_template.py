"""The chat template of a policy. With it, a reply is trained on in the very context in which it was sampled.

ART renders a whole episode at once, the server a prompt per reply. Both agree if the prompt of each reply is the beginning of
the whole. Qwen3's own template fails this: its server lets the model think unless every request forbids it, ART's
tokenizer never does, and the empty thought that stands before a reply disappears when the next message follows.

Only the template writes control tokens. In a message, `<|im_end|>` is text: a mail could otherwise end the turn that shows
it, and go on as the system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.errors import BadInput

QWEN3_WITHOUT_THOUGHTS = Path(__file__).parent / "chat_templates" / "qwen3_without_thoughts.jinja"
_BREAK = "\ufdd0"
"""Stands within the name of a control token that is text: a code point that no text has."""
_EPISODE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Ann."},
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": "At noon."},
]


def load_tokenizer(model: str | os.PathLike[str]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model, with the chat template that its policies have."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    if replaced := _replacement(tokenizer.chat_template):
        tokenizer.chat_template = replaced.read_text(encoding="utf-8")

    def apply_chat_template(conversation: Any, tools: Any = None, *, tokenize: bool = True, **options: Any) -> Any:
        text = render(tokenizer, conversation, tools, **options)
        return tokenize_rendered(tokenizer, text) if tokenize else text.replace(_BREAK, "")

    tokenizer.apply_chat_template = apply_chat_template  # ART tokenizes with it
    return tokenizer


def render(tokenizer: PreTrainedTokenizerBase, conversation: Any, tools: Any = None, **options: Any) -> str:
    """Return the conversation as text for `tokenize_rendered`. Names of control tokens in messages and tools are broken."""
    control, special = _control_names(tokenizer)
    messages = []
    for message in conversation:
        broken = _broken(message, control)
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            # A reply in a demonstration spells out its calls, with tokens that are not special.
            broken["content"] = _broken(message["content"], special)
        messages.append(broken)
    apply = type(tokenizer).apply_chat_template
    return str(apply(tokenizer, messages, tools=_broken(tools, control), **{**options, "tokenize": False}))


def tokenize_rendered(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text by `render`."""
    parts = (part for part in text.split(_BREAK) if part)
    return [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False)]


def require_tokenizer(model: Path) -> None:
    """Raise BadInput if the tokenizer or chat template of a model cannot be used."""
    with _said_to_be_unusable(model):
        load_tokenizer(model).apply_chat_template(_EPISODE, tokenize=True)


@contextmanager
def _said_to_be_unusable(model: str | os.PathLike[str]) -> Iterator[None]:
    """Raise BadInput for whatever reading the tokenizer and rendering the chat template of a model raises."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # the tokenizers of transformers raise errors of many libraries
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(f"base_model: the tokenizer or chat template in {model} cannot be used: {reason}") from error


def replaced_template(model: str | os.PathLike[str]) -> Path | None:
    """Return the file of the template that replaces the model's own; None if its own stays."""
    try:
        return _replacement(AutoTokenizer.from_pretrained(model).chat_template)
    except (OSError, ValueError):
        return None  # no tokenizer, which the server says


def require_growing_prompts(model: str | os.PathLike[str], backend: str) -> None:
    """Raise BadInput if the model would be trained on other texts than it is sampled with, or its template cannot be used."""
    with _said_to_be_unusable(model):
        tokenizer = load_tokenizer(model)
        if isinstance(tokenizer.chat_template, str):  # what reads the template says so otherwise
            _require_growing_prompts(tokenizer, model, backend)


def _require_growing_prompts(tokenizer: PreTrainedTokenizerBase, model: str | os.PathLike[str], backend: str) -> None:
    options = template_options(tokenizer)
    whole = _rendered(tokenizer, len(_EPISODE), **options)
    served_with = options if backend == "torch" else {}  # requests to vLLM have no options of a template
    for length, message in enumerate(_EPISODE):
        if message["role"] != "assistant":
            continue
        prompt = _rendered(tokenizer, length, add_generation_prompt=True, **served_with)
        if not whole.startswith(prompt + message["content"]):
            raise BadInput(
                f"base_model: the chat template of {Path(model).name} changes earlier turns when a conversation goes on, or lets the model "
                "think: it would be trained on other texts than it samples. Name a folder with its files and a "
                "chat_template.jinja that only appends"
            )


def template_options(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the template arguments that ART passes when it tokenizes (`art.preprocessing.tokenize`)."""
    template = tokenizer.chat_template
    options: dict[str, Any] = {}
    if isinstance(template, str) and "enable_thinking" in template:
        options["enable_thinking"] = False
    if isinstance(template, str) and "preserve_thinking" in template:
        options["preserve_thinking"] = True
    return options


@lru_cache(maxsize=8)
def _control_names(tokenizer: PreTrainedTokenizerBase) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of the names of all control tokens, and of the special ones among them."""
    special = {str(token) for token in tokenizer.all_special_tokens}
    return _pattern({*special, *(name for name in tokenizer.get_added_vocab() if not name.isspace())}), _pattern(
        special
    )


def _pattern(names: set[str]) -> re.Pattern[str]:
    """Return a pattern for the beginning of each name. After two characters, because templates replace `<|` in calls."""
    longest = sorted((name for name in names if len(name) > 1), key=len, reverse=True)
    halves = ((name[:2], name[2:]) if len(name) > 2 else (name[:1], name[1:]) for name in longest)
    return re.compile("|".join(f"{re.escape(begin)}(?={re.escape(end)})" for begin, end in halves) or r"(?!)")


def _broken(value: Any, names: re.Pattern[str]) -> Any:
    """Return a value whose texts have a break in each of these names, and nowhere else."""
    if isinstance(value, str):
        return names.sub(lambda found: found[0] + _BREAK, value.replace(_BREAK, "\N{REPLACEMENT CHARACTER}"))
    if isinstance(value, Mapping):
        return {_broken(key, names): _broken(item, names) for key, item in value.items()}
    return [_broken(item, names) for item in value] if isinstance(value, list | tuple) else value


def _replacement(template: Any) -> Path | None:
    """Return the template that replaces this one. Qwen3's successors have the same marks and another form of tool calls."""
    marks = ("last_query_index", "enable_thinking", '{\\"name\\": <function-name>')
    of_qwen3 = isinstance(template, str) and all(mark in template for mark in marks)
    return QWEN3_WITHOUT_THOUGHTS if of_qwen3 else None


def _rendered(tokenizer: PreTrainedTokenizerBase, length: int, **options: Any) -> str:
    return render(tokenizer, _EPISODE[:length], **options)
