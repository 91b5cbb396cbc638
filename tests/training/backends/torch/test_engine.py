"""What the engine samples and reports must not depend on batching, caching or adapters served in between."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.training.backends.torch.tiny_models import random_adapter
from training.backends.torch import TorchSettings
from training.backends.torch.adapter_trainer import target_logprobs
from training.backends.torch.attention import CachedAttention, KVPool, Span
from training.backends.torch.engine import Completion, Engine, SamplingParams
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.ngram_speculation import NgramSpeculation
from training.backends.torch.token_tree import Sample
from training.errors import BadInput

pytestmark = pytest.mark.service


@pytest.fixture
def engine(model_dir: Path, settings: TorchSettings) -> Iterator[Engine]:
    engine = Engine(PolicyNetwork(model_dir, settings), settings)
    yield engine
    engine.close()


def reference_logprobs(
    model_dir: Path, ids: list[int], from_position: int, adapter_dir: Path | None = None
) -> list[float]:
    """By transformers (and PEFT) alone, in one full forward pass."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="eager")
    if adapter_dir:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter_dir)
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logprobs[t - 1, ids[t]]) for t in range(from_position, len(ids))]


def check(model_dir: Path, prompt: list[int], completion: Completion, adapter_dir: Path | None = None) -> None:
    expected = reference_logprobs(model_dir, prompt + completion.token_ids, len(prompt), adapter_dir)
    assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def prompts(count: int, shared: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    prefix = rng.integers(3, 300, shared).tolist()
    return [prefix + rng.integers(3, 300, int(rng.integers(1, 60))).tolist() for _ in range(count)]


def test_interleaved_requests_get_the_logprobs_of_a_full_forward(model_dir: Path, engine: Engine) -> None:
    batch = prompts(12, shared=40)
    futures = [engine.submit(p, SamplingParams(max_tokens=5 + i, seed=i)) for i, p in enumerate(batch)]
    completions = [future.result(60) for future in futures]
    assert sum(c.cached_tokens for c in completions) >= 11 * 40
    for prompt, completion in zip(batch, completions, strict=True):
        check(model_dir, prompt, completion)


def test_greedy_equals_transformers_generate(model_dir: Path, engine: Engine) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    batch = prompts(4, shared=10, seed=1)
    futures = [engine.submit(p, SamplingParams(max_tokens=20, temperature=0)) for p in batch]
    for prompt, future in zip(batch, futures, strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
        assert future.result(60).token_ids == expected.tolist()


def test_a_second_turn_reuses_the_first_and_stays_exact(model_dir: Path, engine: Engine) -> None:
    prompt = prompts(1, shared=50)[0]
    for turn in range(3):
        completion = engine.submit(prompt, SamplingParams(max_tokens=8, seed=turn)).result(60)
        check(model_dir, prompt, completion)
        if turn:
            assert completion.cached_tokens >= len(prompt) - 12
        prompt = prompt + completion.token_ids + [5, 6, 7]


def test_in_bfloat16_sampling_and_training_see_nearly_the_same_policy(llama_dir: Path, settings: TorchSettings) -> None:
    settings = settings.model_copy(update={"matmul_dtype": "bfloat16"})
    engine = Engine(network := PolicyNetwork(llama_dir, settings), settings)
    try:
        prompt = prompts(1, shared=50)[0]
        adapter = random_adapter(network)
        completion = engine.submit(prompt, SamplingParams(max_tokens=40, seed=0), adapter).result(60)
        ids = np.asarray(prompt + completion.token_ids)
        targets = np.arange(len(prompt), len(ids))

        def train() -> torch.Tensor:
            with network.training_adapter(adapter):
                return target_logprobs(network, [Sample(ids, targets)], grad_from=0)[0]

        trained = engine.run_exclusive(train)
    finally:
        engine.close()
    assert {linear.weight.dtype for linear in network.linears.values()} == {torch.bfloat16}
    assert trained.dtype == torch.float32
    differences = np.abs(np.asarray(completion.logprobs) - trained.detach().numpy())
    # Of twenty random adapters: 0.011 in the mean, a single token up to 0.1 (the model's widths are tiny, its logits large).
    assert differences.mean() < 0.02
    assert differences.max() < 0.1


def test_chunked_prefill_is_exact(model_dir: Path, settings: TorchSettings) -> None:
    small = settings.model_copy(update={"step_tokens": 16, "max_running": 3})
    engine = Engine(PolicyNetwork(model_dir, small), small)
    try:
        batch = prompts(6, shared=70, seed=2)
        futures = [engine.submit(p, SamplingParams(max_tokens=6)) for p in batch]
        for prompt, future in zip(batch, futures, strict=True):
            check(model_dir, prompt, future.result(60))
    finally:
        engine.close()


def test_a_full_cache_evicts_and_stays_exact(model_dir: Path, settings: TorchSettings) -> None:
    small = settings.model_copy(update={"kv_cache_tokens": 256})
    engine = Engine(PolicyNetwork(model_dir, small), small)
    try:
        batch = prompts(8, shared=60, seed=3) + prompts(8, shared=90, seed=4)
        futures = [engine.submit(p, SamplingParams(max_tokens=6)) for p in batch]
        for prompt, future in zip(batch, futures, strict=True):
            check(model_dir, prompt, future.result(60))
    finally:
        engine.close()


@pytest.mark.parametrize("then", ["continue", "cancel"])
def test_replies_to_one_prompt_share_it_and_stay_exact(model_dir: Path, settings: TorchSettings, then: str) -> None:
    """Copies of the prompt would not fit; what follows a reply, or takes the place of one, is exact too."""
    settings = settings.model_copy(update={"kv_cache_tokens": 600})
    engine = Engine(PolicyNetwork(model_dir, settings), settings)
    try:
        prompt = np.random.default_rng(0).integers(3, 300, 200).tolist()
        most_running = 0

        def look(*_: object) -> None:
            nonlocal most_running
            most_running = max(most_running, engine.running())

        futures = [engine.submit(prompt, SamplingParams(24, seed=i), on_token=look) for i in range(12)]
        if then == "cancel":
            for future in futures[::3]:
                future.cancel()
        for future in futures:
            if not future.cancelled():
                check(model_dir, prompt, future.result(60))
        assert most_running == 12 if then == "continue" else most_running >= 8
        for future in futures[1:4:2]:
            if not future.cancelled():
                longer = prompt + future.result().token_ids + [5, 6, 7]
                check(model_dir, longer, engine.submit(longer, SamplingParams(8, seed=1)).result(60))
        other = np.random.default_rng(1).integers(3, 300, 560).tolist()  # needs nearly all of the cache
        check(model_dir, other, engine.submit(other, SamplingParams(30, seed=2)).result(60))
    finally:
        engine.close()


def test_adapters_take_turns_and_leave_the_base_exact(model_dir: Path, engine: Engine, tmp_path: Path) -> None:
    adapter = random_adapter(engine.network)
    engine.network.save_adapter(adapter, tmp_path)
    batch = prompts(6, shared=30, seed=5)
    for _ in range(2):
        futures = [
            (prompt, chosen, engine.submit(prompt, SamplingParams(max_tokens=6), chosen))
            for prompt in batch
            for chosen in (None, adapter)
        ]
        for prompt, chosen, future in futures:
            check(model_dir, prompt, future.result(60), tmp_path if chosen else None)
    for _ in range(20):
        engine.network.merge(adapter)
        engine.network.merge(None)
    fresh = PolicyNetwork(model_dir, TorchSettings(device="cpu", threads=1, matmul_dtype="float32"))
    for name, linear in fresh.linears.items():
        assert torch.equal(linear.weight, engine.network.linears[name].weight), name


@pytest.mark.parametrize("lora_layers", [None, 1])
def test_an_update_has_the_memory_of_the_cache(
    model_dir: Path, settings: TorchSettings, lora_layers: int | None
) -> None:
    settings = settings.model_copy(update={"lora_layers": lora_layers})
    engine = Engine(PolicyNetwork(model_dir, settings), settings)
    store = weakref.ref(engine._pool.store)
    engine.submit(prompts(1, shared=20)[0], SamplingParams(max_tokens=3)).result(60)
    assert engine.run_exclusive(store) is None
    again = engine.submit(prompts(1, shared=20)[0], SamplingParams(max_tokens=3, temperature=0)).result(60)
    engine.close()
    assert again.token_ids


def test_seed_reproduces_and_top_p_restricts(engine: Engine) -> None:
    prompt = prompts(1, shared=20)[0]
    runs = [engine.submit(prompt, SamplingParams(max_tokens=10, seed=3)).result(60).token_ids for _ in range(2)]
    assert runs[0] == runs[1]
    narrow = engine.submit(prompt, SamplingParams(max_tokens=10, top_p=1e-6, seed=9)).result(60)
    greedy = engine.submit(prompt, SamplingParams(max_tokens=10, temperature=0)).result(60)
    assert narrow.token_ids == greedy.token_ids


def test_repeated_replies_take_fewer_steps(model_dir: Path, engine: Engine) -> None:
    prompt = prompts(1, shared=30)[0]
    replies, steps = [], []
    for _ in range(3):
        before = engine.counters["steps"]
        replies.append(engine.submit(prompt, SamplingParams(max_tokens=30, seed=5)).result(60))
        steps.append(engine.counters["steps"] - before)
    assert replies[0].token_ids == replies[1].token_ids == replies[2].token_ids
    check(model_dir, prompt, replies[2])
    assert steps[2] <= 5 < 30 <= steps[0]
    assert 24 <= engine.counters["accepted_tokens"] <= engine.counters["drafted_tokens"] < 30


def test_counters_are_updated_before_on_token(engine: Engine) -> None:
    recorded: list[int] = []
    future = engine.submit(prompts(1, shared=10)[0], SamplingParams(max_tokens=40, seed=1))
    future.add_done_callback(lambda _: recorded.append(engine.counters["sampled_tokens"]))
    future.result(60)
    assert engine.run_exclusive(lambda: recorded) == [40]


@pytest.mark.parametrize("wrong", [1, 2, 3, 5, 100])
def test_wrong_guesses_change_nothing(
    model_dir: Path, settings: TorchSettings, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a reply that is known before, one guess of every `wrong` is another token; others are sampled beside it."""
    network = PolicyNetwork(model_dir, settings)
    prompt, *others = prompts(3, shared=30)
    params = SamplingParams(max_tokens=30, seed=5)
    with monkeypatch.context() as without_guesses:
        without_guesses.setattr(NgramSpeculation, "propose", lambda *_: [])
        plain = Engine(network, settings)
        reply = plain.submit(prompt, params).result(60)
    assert plain.counters["drafted_tokens"] == 0
    plain.close()

    def guesses(_: NgramSpeculation, ids: np.ndarray, most: int) -> list[int]:
        if ids[: len(prompt)].tolist() != prompt:
            return [7] * most
        begin = len(ids) - len(prompt)
        return [(reply.token_ids[i] + (i % wrong == 0)) % 300 for i in range(begin, min(begin + most, 30))]

    monkeypatch.setattr(NgramSpeculation, "propose", guesses)
    monkeypatch.setattr("training.backends.torch.engine._SAMPLED_ROWS", 4)
    engine = Engine(network, settings)
    few = np.zeros(network.config.vocab_size, bool)
    few[10:20] = True
    restricted = engine.submit(others[0], SamplingParams(max_tokens=12, seed=2), allowed=lambda _: few)
    recorded: list[int] = []
    beside = [engine.submit(other, SamplingParams(max_tokens=20, seed=i)) for i, other in enumerate(others)]
    again = engine.submit(prompt, params, on_token=lambda token, _: recorded.append(token)).result(60)
    assert again.token_ids == recorded == reply.token_ids
    check(model_dir, prompt, again)
    for other, future in zip(others, beside, strict=True):
        check(model_dir, other, future.result(60))
    assert all(few[restricted.result(60).token_ids])
    assert (engine.counters["accepted_tokens"] >= 25) == (wrong == 100)
    # What was computed for a wrong guess is not what a later turn finds in the cache.
    longer = [*prompt, *again.token_ids, 5, 6]
    follow_up = engine.submit(longer, SamplingParams(max_tokens=4, seed=1)).result(60)
    assert follow_up.cached_tokens >= len(longer) - 3
    check(model_dir, longer, follow_up)
    # A reply ends where it would without guesses, however many were right.
    stopped = engine.submit(prompt, params, is_stop=lambda ids: len(ids) == 7).result(60)
    assert (stopped.token_ids, stopped.finish_reason) == (reply.token_ids[:7], "stop")
    monkeypatch.setattr(network, "end_ids", frozenset([reply.token_ids[11]]))
    ended = engine.submit(prompt, params).result(60)
    assert ended.token_ids == reply.token_ids[: reply.token_ids.index(reply.token_ids[11]) + 1]
    engine.close()


def test_guesses_leave_a_step_its_size(
    model_dir: Path, settings: TorchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(PolicyNetwork(model_dir, settings), settings.model_copy(update={"step_tokens": 16}))
    monkeypatch.setattr(NgramSpeculation, "propose", lambda _, ids, most: [7] * most)
    sizes, attention = [], CachedAttention.__init__

    def measured(plan: CachedAttention, pool: KVPool, spans: Sequence[Span]) -> None:
        sizes.append(spans[-1].end)
        attention(plan, pool, spans)

    monkeypatch.setattr(CachedAttention, "__init__", measured)
    futures = [engine.submit(p, SamplingParams(max_tokens=20, seed=i)) for i, p in enumerate(prompts(6, shared=5))]
    for future in futures:
        future.result(60)
    engine.close()
    assert 12 <= max(sizes) <= 17  # a prompt that waits for its turn gets one token at least


def test_cancelled_requests_give_their_place_back(engine: Engine) -> None:
    futures = [engine.submit(p, SamplingParams(max_tokens=400)) for p in prompts(4, shared=20)]
    for future in futures:
        future.cancel()
    assert engine.submit(prompts(1, shared=20)[0], SamplingParams(max_tokens=2)).result(60).token_ids
    assert engine.running() == 0


def test_prompts_that_cannot_fit_are_refused(engine: Engine) -> None:
    with pytest.raises(BadInput, match="together 1025"):
        engine.submit([5] * 1000, SamplingParams(max_tokens=25))
    with pytest.raises(BadInput, match="empty"):
        engine.submit([], SamplingParams(max_tokens=25))


def test_work_that_fails_is_told_and_the_engine_goes_on(engine: Engine) -> None:
    def fail() -> None:
        raise ZeroDivisionError("work")

    with pytest.raises(ZeroDivisionError, match="work"):
        engine.run_exclusive(fail)
    assert engine.submit(prompts(1, shared=20)[0], SamplingParams(max_tokens=3)).result(60).token_ids


def test_everything_is_computed_in_one_thread(engine: Engine) -> None:
    """Two threads that compute have two teams of OpenMP threads, which stop spinning for each other's sake."""
    threads = set()
    hidden = engine.network.hidden
    engine.network.hidden = lambda *args, **more: threads.add(threading.get_ident()) or hidden(*args, **more)
    engine.submit(prompts(1, shared=20)[0], SamplingParams(max_tokens=3)).result(60)
    assert threads == {engine.run_exclusive(threading.get_ident)}
