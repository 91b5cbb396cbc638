"""Many sequences that decode side by side, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engine import check, prompts
from tiny_models import random_adapter

from training.backends.torch import TorchSettings
from training.backends.torch.decode_cache import DecodePlan
from training.backends.torch.engine import Engine, SamplingParams
from training.backends.torch.network import LoraAdapter, PolicyNetwork


@pytest.fixture
def heights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences were computed together, step by step."""
    seen: list[int] = []
    init = DecodePlan.__init__

    def spy(self: DecodePlan, cache: object, shared: int, rows: list[int], places: list[int]) -> None:
        seen.append(len(rows))
        init(self, cache, shared, rows, places)

    monkeypatch.setattr(DecodePlan, "__init__", spy)
    return seen


@pytest.fixture
def engine(model_dir: Path, settings: TorchSettings) -> Iterator[Engine]:
    engine = Engine(PolicyNetwork(model_dir, settings), settings)
    yield engine
    engine.close()


def converse(
    engine: Engine,
    model_dir: Path,
    batch: list[list[int]],
    adapter: LoraAdapter | None = None,
    folder: Path | None = None,
    shortest: int = 8,
) -> list[list[int]]:
    """All prompts at once, each a token longer than the one before; what was said, checked."""
    futures = [engine.submit(p, SamplingParams(max_tokens=shortest + i), adapter) for i, p in enumerate(batch)]
    said = []
    for prompt, future in zip(batch, futures, strict=True):
        completion = future.result(60)
        check(model_dir, prompt, completion, folder)
        said.append(prompt + completion.token_ids)
    return said


def test_turns_that_share_more_or_less_are_exact(model_dir: Path, engine: Engine, heights: list[int]) -> None:
    batch = prompts(12, shared=40)
    turns = [ids + [5, 6, 7 + i] for i, ids in enumerate(converse(engine, model_dir, batch))]
    turns = converse(engine, model_dir, turns)
    converse(engine, model_dir, prompts(12, shared=90, seed=1))
    converse(engine, model_dir, turns[:6] + prompts(6, shared=20, seed=2))
    assert max(heights) == 12


def test_a_longer_conversation_joins(model_dir: Path, engine: Engine, heights: list[int]) -> None:
    """It shares nothing with those that are under way, and its row is longer than theirs."""
    futures = [engine.submit(p, SamplingParams(max_tokens=60)) for p in prompts(14, shared=40)]
    long = prompts(1, shared=160, seed=6)[0]
    late = engine.submit(long, SamplingParams(max_tokens=50))
    for prompt, future in zip(prompts(14, shared=40), futures, strict=True):
        check(model_dir, prompt, future.result(60))
    check(model_dir, long, late.result(60))
    assert heights and engine._decode_cache.block.shape[4] >= len(long) + 50


def test_the_shared_beginning_is_the_adapters_own(
    model_dir: Path, engine: Engine, heights: list[int], tmp_path: Path
) -> None:
    adapter = random_adapter(engine.network, layers=None)
    engine.network.save_adapter(adapter, tmp_path)
    batch = prompts(10, shared=40)
    for _ in range(2):
        heights.clear()
        converse(engine, model_dir, batch)
        converse(engine, model_dir, batch, adapter, tmp_path)
        assert max(heights) == 10


def test_sequences_without_a_row_are_computed_too(model_dir: Path, settings: TorchSettings, heights: list[int]) -> None:
    small = settings.model_copy(update={"kv_cache_tokens": 1280})
    engine = Engine(PolicyNetwork(model_dir, small), small)
    try:
        rng = np.random.default_rng(0)
        converse(engine, model_dir, [rng.integers(3, 300, 10).tolist() for _ in range(14)], shortest=30)
        assert max(heights) == 10
    finally:
        engine.close()


def test_an_update_has_the_memory_of_the_rows(model_dir: Path, engine: Engine, heights: list[int]) -> None:
    futures = [engine.submit(p, SamplingParams(max_tokens=200)) for p in prompts(16, shared=20)]
    while not heights:
        assert not all(future.done() for future in futures)
    assert engine.alone(lambda: engine._decode_cache.block.numel()) == 0
    for prompt, future in zip(prompts(16, shared=20), futures, strict=True):
        check(model_dir, prompt, future.result(60))


def test_memory_behind_a_sequence_has_no_weight(model_dir: Path, engine: Engine) -> None:
    """Whatever numbers a row has from an earlier, longer sequence."""
    converse(engine, model_dir, prompts(9, shared=30), shortest=60)
    block = engine._decode_cache.block
    with torch.inference_mode():
        block.fill_(3e4)
    converse(engine, model_dir, prompts(9, shared=30, seed=4), shortest=2)
    assert engine._decode_cache.block is block
