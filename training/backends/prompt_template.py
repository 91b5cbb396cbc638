"""The chat template of a policy. With it, a reply is trained on in the very context in which it was sampled.

ART renders a whole episode at once, the server a prompt per reply. Both agree if the prompt of each reply is the beginning of
the whole. Qwen3's own template fails this: its server lets the model think unless every request forbids it, ART's
tokenizer never does, and the empty thought that stands before a reply disappears when the next message follows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from training.errors import BadInput

QWEN3_WITHOUT_THOUGHTS = Path(__file__).parent / "chat_templates" / "qwen3_without_thoughts.jinja"
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
    return tokenizer


def require_tokenizer(model: Path) -> None:
    """Raise BadInput if the tokenizer or chat template of a model cannot be used."""
    try:
        load_tokenizer(model).apply_chat_template(_EPISODE, tokenize=True)
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
    """Raise BadInput if the model would be trained on other texts than it is sampled with."""
    tokenizer = load_tokenizer(model)
    if not isinstance(tokenizer.chat_template, str):
        return  # what reads the template says so
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


def _replacement(template: Any) -> Path | None:
    """Return the template that replaces this one. Qwen3's successors have the same marks and another form of tool calls."""
    marks = ("last_query_index", "enable_thinking", '{\\"name\\": <function-name>')
    of_qwen3 = isinstance(template, str) and all(mark in template for mark in marks)
    return QWEN3_WITHOUT_THOUGHTS if of_qwen3 else None


def _rendered(tokenizer: PreTrainedTokenizerBase, length: int, **options: Any) -> str:
    return str(tokenizer.apply_chat_template(_EPISODE[:length], tokenize=False, **options))
