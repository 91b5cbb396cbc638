"""The workload of every side and its minimum arithmetic. Standard library only, so that any Python can import it.

A side is `python -m benchmarks.backend_sides.SIDE JOB.json`; its last line on stdout is its figures as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Turn:
    """Token ids of a reply (sampling sides use only their number), and of the context between it and the next reply."""

    reply: list[int]
    then: list[int]


@dataclass(frozen=True)
class Conversation:
    """Token ids of the first prompt, and the turns."""

    opening: list[int]
    turns: list[Turn]

    @property
    def ids(self) -> list[int]:
        """Return all ids up to the end of the last reply."""
        return [*self.opening, *(id for turn in self.turns for id in (*turn.reply, *turn.then))]

    @property
    def reply_tokens(self) -> int:
        return sum(len(turn.reply) for turn in self.turns)

    @property
    def labels(self) -> list[bool]:
        """Return a mask of the `ids` that belong to replies."""
        marks = [False] * len(self.opening)
        for turn in self.turns:
            marks += [True] * len(turn.reply) + [False] * len(turn.then)
        return marks


@dataclass(frozen=True)
class Job:
    """The workload of all sides. The conversations of each group in `groups` share an opening; `demonstrations` have
    different openings.

    `decode_prompts` are continued concurrently by `decode_tokens` tokens each. Each measurement is repeated `repeats`
    times and the fastest counts, because other work on the machine can only slow it down. `gemm_size` is the size of
    the square matrices whose product measures the arithmetic limit.
    """

    model: str
    dtype: str
    threads: int
    repeats: int
    gemm_size: int
    groups: list[list[Conversation]]
    demonstrations: list[Conversation]
    decode_prompts: list[list[int]]
    decode_tokens: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str) -> Job:
        values = json.loads(Path(path).read_text())
        values["groups"] = [[_conversation(c) for c in group] for group in values["groups"]]
        values["demonstrations"] = [_conversation(c) for c in values["demonstrations"]]
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @property
    def conversations(self) -> list[Conversation]:
        return [conversation for group in self.groups for conversation in group]


def _conversation(values: dict[str, Any]) -> Conversation:
    return Conversation(values["opening"], [Turn(**turn) for turn in values["turns"]])


def job_of_command() -> Job:
    """Return the job that this process was started with."""
    return Job.read(sys.argv[1])


def fastest(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """Run `work` `repeats` times. Return the seconds of the fastest run and its result."""
    best: tuple[float, Result] | None = None
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - started
        if best is None or seconds < best[0]:
            best = seconds, result
    assert best is not None, "repeats is at least 1"
    return best


# Arithmetic


@dataclass(frozen=True)
class Work:
    """Counts of computed tokens, of keys that these attend to (summed over tokens), and of positions that need the
    output head.
    """

    tokens: int
    pairs: int
    head_rows: int

    @classmethod
    def of_positions(cls, positions: Iterable[int], head_rows: int) -> Work:
        seen = [position + 1 for position in positions]
        return cls(len(seen), sum(seen), head_rows)

    def __add__(self, other: Work) -> Work:
        return Work(self.tokens + other.tokens, self.pairs + other.pairs, self.head_rows + other.head_rows)


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a Llama-like model that determine its arithmetic."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def of(cls, model: str | Path) -> ModelSize:
        config = json.loads((Path(model) / "config.json").read_text())
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
        )

    @property
    def projections(self) -> list[tuple[int, int]]:
        """(in, out) of a layer's matrices."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = [(self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden)]
        return [*attention, *[(self.hidden, self.intermediate)] * 2, (self.intermediate, self.hidden)]

    @property
    def layer_weights(self) -> int:
        return sum(a * b for a, b in self.projections)

    @property
    def weights(self) -> int:
        """The number of weights read per decoding step: the layers and the head."""
        return self.layers * self.layer_weights + self.hidden * self.vocabulary

    @property
    def cached_numbers(self) -> int:
        """The number of values in the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def forward_flops(self, work: Work) -> int:
        """Return the floating-point operations of the forward pass. A multiplication and an addition count as two."""
        products = 2 * work.tokens * self.layers * self.layer_weights
        attention = 4 * work.pairs * self.layers * self.heads * self.head_dim
        return products + attention + 2 * work.head_rows * self.hidden * self.vocabulary

    def update_flops(self, work: Work, lora_rank: int) -> int:
        """Return the operations of forward and backward passes for an adapter on all projections of all layers; base
        weights have no gradient.

        The backward pass of a frozen product costs one more product, that of attention two more. The adapter's own
        products count three times: forward, gradient of the input, gradient of the matrix.
        """
        adapter = self.layers * lora_rank * sum(a + b for a, b in self.projections)
        attention = 4 * work.pairs * self.layers * self.heads * self.head_dim
        return 2 * self.forward_flops(work) + attention + 6 * work.tokens * adapter


def least_rollout_work(groups: list[list[Conversation]]) -> Work:
    """Return the minimum work of any server: a group's opening once, everything after it once, the head for each
    sampled token.
    """
    total = Work(0, 0, 0)
    for group in groups:
        opening = len(group[0].opening)
        total += Work.of_positions(range(opening), 0)
        for conversation in group:
            # The last sampled token is never fed back.
            total += Work.of_positions(range(opening, len(conversation.ids) - 1), conversation.reply_tokens)
    return total
