"""Restrict a reply to one call of the request's tools (llguidance).

Fixed parts of the call allow only the tokens into which the tokenizer splits them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from training.backends.torch.tool_calls import call_form
from training.errors import BadInput

AllowedTokens = Callable[[Sequence[int]], np.ndarray]
"""Map the ids sampled so far to a mask, bool [vocabulary]. Call it in the order of sampling."""
ANY_TOOL = ""


class ToolGrammar:
    """Grammars of tool calls for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        """`vocabulary` is the number of the model's logits, which may exceed the tokenizer's tokens."""
        self._tokenizer = tokenizer
        self._calls = call_form(str(tokenizer.chat_template))
        self._vocabulary = vocabulary

    def one_call(self, tools: Sequence[Mapping[str, Any]], name: str) -> AllowedTokens:
        """Allow a single call of the tool `name` (or `ANY_TOOL`), followed by the end of the reply.

        Raise `BadInput` when there is no such tool or its parameters are not a supported JSON schema.
        """
        functions = [tool.get("function") or {} for tool in tools]
        chosen = [f for f in functions if f.get("name") and name in (ANY_TOOL, f["name"])]
        if not chosen:
            known = ", ".join(str(f.get("name")) for f in functions) or "none"
            raise BadInput(
                f"tool_choice: a call of {name or 'a tool'} is required, but the request's tools are: {known}."
            )
        for function in chosen:
            if not isinstance(function.get("parameters") or {}, Mapping):
                raise BadInput(f"tools: the parameters of {function['name']} are not a JSON schema.")
        return self._allowed(self._calls.grammar(chosen, tools, self._mark))

    def _mark(self, mark: str) -> str:
        """Return `mark` as a part of a grammar: as a token of its own if the tokenizer has one (Qwen2.5), which text never matches."""
        return mark if mark in self._tokenizer.get_added_vocab() else json.dumps(mark)

    def _allowed(self, grammar: str) -> AllowedTokens:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._llguidance_tokenizer, grammar, log_level=0)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())
            raise BadInput(f"tools: their parameters cannot be followed: {reason[:200]}")
        consumed = 0

        def allowed(sampled: Sequence[int]) -> np.ndarray:
            nonlocal consumed
            matcher.consume_tokens(list(sampled[consumed:]))
            consumed = len(sampled)
            if matcher.is_error():  # the schema exceeds llguidance's limits: end the reply as text
                mask = np.zeros(self._vocabulary, bool)
                mask[self._tokenizer.eos_token_id] = True
                return mask
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            return np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)

        return allowed

    @cached_property
    def _llguidance_tokenizer(self) -> Any:
        from llguidance.hf import from_tokenizer

        return from_tokenizer(self._tokenizer, n_vocab=self._vocabulary)
