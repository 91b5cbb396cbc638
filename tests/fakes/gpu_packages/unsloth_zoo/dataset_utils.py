"""Unsloth's labels of a demonstration: the tokens of the assistant's turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Labels = Callable[[dict[str, list[list[int]]]], dict[str, list[list[int]]]]


def train_on_responses_only(
    *,
    trainer: None,
    instruction_part: str,
    response_part: str,
    force_match: bool,
    tokenizer: Any,
    return_function: bool,
) -> Labels:
    assert return_function and not force_match
    # The line break after a role may be part of a longer token.
    others, own = (
        tokenizer.encode(part.strip(), add_special_tokens=False) for part in (instruction_part, response_part)
    )

    def labels(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        return {"labels": [_of_responses(ids, own, others) for ids in examples["input_ids"]]}

    return labels


def _of_responses(ids: list[int], own: list[int], others: list[int]) -> list[int]:
    labels, responding = [], False
    for place, token in enumerate(ids):
        if ids[place : place + len(others)] == others:
            responding = False
        labels.append(token if responding else -100)
        begin = place + 1 - len(own)
        if begin >= 0 and ids[begin : place + 1] == own:
            responding = True
    return labels
