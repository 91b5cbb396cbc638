"""Several sequences that attend in one call, as on a GPU, get the same as with one call for each."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.backends.torch.attention import CachedAttention, CausalMask, KVPool, Span

pytestmark = pytest.mark.service

_KV_HEADS, _WIDTH, _TOKENS = 2, 8, 256


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30)), min_size=1, max_size=4),
    st.sampled_from([1, 3]),
)
def test_sequences_that_attend_together_get_what_each_gets_alone(lengths, repeat):
    """Each sequence has (new, earlier) tokens. Those with over 16 new ones, as in a prefill, attend alone in any case."""
    torch.manual_seed(0)
    pool = KVPool(1, _KV_HEADS, _WIDTH, _TOKENS, torch.float32, torch.device("cpu"))
    pool.store.normal_()
    spans, begin = [], 0
    for new, earlier in lengths:
        start = pool.allocate(new + earlier)
        spans.append(Span(begin, begin + new, start, new + earlier))
        begin += new
    query = torch.randn(_KV_HEADS * repeat, begin, _WIDTH)
    key, value = torch.randn(2, _KV_HEADS, begin, _WIDTH)
    alone, together = (
        CachedAttention(pool, spans, together=way).attend(0, query, key, value, 0.5) for way in (False, True)
    )
    assert torch.allclose(alone, together, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 10), st.sampled_from([0, 7, 30])), min_size=1, max_size=5),
    st.booleans(),
)
def test_shared_keys_count_as_copies_do(lengths, together):
    """Each sequence has (new, earlier own, shared) tokens."""
    torch.manual_seed(0)
    needed = 30 + sum(map(sum, lengths))
    pool = KVPool(1, _KV_HEADS, _WIDTH, max(_TOKENS, needed), torch.float32, torch.device("cpu"))
    pool.store.normal_()
    prefix = pool.allocate(30)
    apart, sharing, begin = [], [], 0
    for new, earlier, shared in lengths:
        start = pool.allocate(shared + earlier + new)
        pool.copy(prefix, start, shared)
        total = shared + earlier + new
        apart.append(Span(begin, begin + new, start, total))
        sharing.append(Span(begin, begin + new, start + shared, total, shared, prefix))
        begin += new
    query = torch.randn(_KV_HEADS * 3, begin, _WIDTH)
    key, value = torch.randn(2, _KV_HEADS, begin, _WIDTH)
    expected, found = (
        CachedAttention(pool, spans, together=together).attend(0, query, key, value, 0.5) for spans in (apart, sharing)
    )
    assert torch.allclose(expected, found, atol=1e-5)


@pytest.mark.parametrize("longest", [9, 200])
def test_the_padding_of_a_short_sequence_is_not_seen(longest):
    pool = KVPool(1, _KV_HEADS, _WIDTH, _TOKENS, torch.float32, torch.device("cpu"))
    pool.store.fill_(float("nan"))  # every slot that no sequence owns
    spans = [Span(0, 1, 0, 3), Span(1, 3, 10, longest)]
    for span in spans:
        pool.store[..., span.start : span.start + span.total, :] = 1.0
    query, key, value = torch.ones(3, _KV_HEADS, 3, _WIDTH)
    out = CachedAttention(pool, spans, together=True).attend(0, query, key, value, 0.5)
    assert torch.equal(out, torch.ones(3, _KV_HEADS, _WIDTH))


@given(st.integers(1, 20), st.integers(0, 30), st.integers(0, 9))
def test_masks_for_a_gpu_have_aligned_rows_and_the_same_numbers(new, earlier, room):
    total = new + earlier
    view, aligned = (
        CausalMask(total + room, torch.bfloat16, torch.device("cpu"), aligned=way).last(new, total)
        for way in (False, True)
    )
    assert torch.equal(view, aligned)
    assert aligned.data_ptr() % 16 == 0
    assert aligned.stride(0) * aligned.element_size() % 16 == 0
