"""transformers' continuous batching: one manager for all turns; each conversation continues as soon as its reply is
complete.

It shares cached prefixes and returns log-probabilities, as ours does.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benchmarks.backend_sides.job import Job, fastest, job_of_command

_PAGE_TOKENS = 32
"""Prefixes are shared in whole pages, so smaller pages share more."""
_STEP_TOKENS = 512
"""The same number as in our engine's step; the default depends on a GPU's memory."""
_SILENT_SECONDS = 600


def main() -> None:
    job = job_of_command()
    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype)).eval()
    seconds, sampled = fastest(lambda: roll_out(model, job), job.repeats)
    assert sampled == sum(c.reply_tokens for c in job.conversations), "every reply has the requested length"
    print(json.dumps({"seconds": seconds, "sampled_tokens": sampled}))


def roll_out(model: Any, job: Job) -> int:
    """Sample all turns of all conversations and return the number of tokens. Raises `RuntimeError` if a request
    fails.
    """
    pages = sum(len(c.ids) // _PAGE_TOKENS + 2 for c in job.conversations)
    settings = ContinuousBatchingConfig(
        page_size=_PAGE_TOKENS, num_blocks=pages, max_batch_tokens=_STEP_TOKENS, return_logprobs=True, seed=0
    )
    sampling = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0)
    ids = [list(c.opening) for c in job.conversations]
    turn = [0] * len(ids)
    sampled = 0
    with model.continuous_batching_context_manager(
        sampling, continuous_batching_config=settings, warmup=False
    ) as manager:

        def ask(i: int) -> None:
            tokens = len(job.conversations[i].turns[turn[i]].reply)
            manager.add_request(ids[i], request_id=f"{i}-{turn[i]}", max_new_tokens=tokens, eos_token_id=-1)

        for i in range(len(ids)):
            ask(i)
        unfinished = len(ids)
        while unfinished:
            result = manager.get_result(timeout=_SILENT_SECONDS)
            if result is None or result.error:
                raise RuntimeError(f"continuous batching: {result.error if result else 'no reply'}")
            if not result.is_finished():
                continue
            i = int(result.request_id.partition("-")[0])
            sampled += len(result.generated_tokens)
            ids[i] += [*result.generated_tokens, *job.conversations[i].turns[turn[i]].then]
            turn[i] += 1
            if turn[i] < len(job.conversations[i].turns):
                ask(i)
            else:
                unfinished -= 1
    return sampled


if __name__ == "__main__":
    main()
