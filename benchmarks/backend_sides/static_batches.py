"""`transformers.generate` on one padded batch per turn; every turn recomputes the conversation from its beginning.

ART is not imported here: it replaces a function of transformers, after which its models do not run.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from benchmarks.backend_sides.job import Job, fastest, job_of_command


class OwnLimits(StoppingCriteria):
    """Ends each row after a given number of new tokens."""

    def __init__(self, prompt: int, limits: list[int]) -> None:
        self._ends = prompt + torch.tensor(limits)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return self._ends <= input_ids.shape[1]


def main() -> None:
    job = job_of_command()
    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype)).eval()
    generate(model, [job.decode_prompts[0][:32]], [2])
    seconds, sampled = fastest(lambda: roll_out(model, job), job.repeats)
    assert sampled == sum(c.reply_tokens for c in job.conversations), "every reply has the requested length"
    print(json.dumps({"seconds": seconds, "sampled_tokens": sampled}))


def roll_out(model: Any, job: Job) -> int:
    """Return the number of tokens sampled in all turns of all conversations."""
    ids = [list(c.opening) for c in job.conversations]
    sampled = 0
    for turn in range(max(len(c.turns) for c in job.conversations)):
        open_ones = [i for i, c in enumerate(job.conversations) if len(c.turns) > turn]
        turns = [job.conversations[i].turns[turn] for i in open_ones]
        replies = generate(model, [ids[i] for i in open_ones], [len(t.reply) for t in turns])
        for i, t, reply in zip(open_ones, turns, replies, strict=True):
            ids[i] += [*reply, *t.then]
            sampled += len(reply)
    return sampled


@torch.inference_mode()
def generate(model: Any, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    """Sample `limits[i]` tokens after `prompts[i]` at temperature 1."""
    width = max(map(len, prompts))
    padding = model.config.pad_token_id or 0
    ids = torch.tensor([[padding] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=max(limits),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=-1,
        pad_token_id=padding,
        stopping_criteria=StoppingCriteriaList([OwnLimits(width, limits)]),
    )
    return [row[width : width + limit].tolist() for row, limit in zip(out, limits, strict=True)]


if __name__ == "__main__":
    main()
