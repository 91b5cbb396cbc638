"""A whole step of TRL's `GRPOTrainer` with a tool, on the conversations of the job. Needs trl, peft and transformers.

TRL samples, calls the tool, recomputes each conversation from its beginning, scores and updates, without changes. The
conversation's own reply of the same length then replaces the sampled one, so that every rollout has the same turns as
on the other sides. All rollouts of a group are identical here; TRL shares nothing between them anyway.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteriaList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.backend_sides.job import Conversation, Job, job_of_command
from benchmarks.backend_sides.static_batches import OwnLimits

_LARGEST_BATCHES = (4, 6)
"""Candidates for the number of conversations per backward pass, rounded down to divisors of their total; the fastest
counts. More take over 20 GB.
"""
_LORA_RANK, _LORA_ALPHA = 16, 32


def main() -> None:
    job = job_of_command()
    total = len(job.conversations)
    sizes = {max(n for n in range(1, most + 1) if total % n == 0) for most in _LARGEST_BATCHES}
    steps = {}
    for size in sorted(sizes):
        # In a separate process, so that running out of memory does not lose the other measurements.
        with (
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process,
            suppress(BrokenProcessPool),
        ):
            steps[size] = process.submit(step_seconds, job, size).result()
    if not steps:
        sys.exit(f"no memory for {min(sizes)} conversations in a backward pass")
    best = min(steps, key=lambda size: steps[size])
    sampled = sum(c.reply_tokens for c in job.conversations)
    print(json.dumps({"seconds": steps[best], "sampled_tokens": sampled, "batch": best}))


class _Script:
    """Map each prompt to its reply, and to whether a tool call follows."""

    def __init__(self, conversations: list[Conversation], end_id: int) -> None:
        self._replies: dict[tuple[int, ...], tuple[list[int], bool]] = {}
        self.results: list[list[int]] = []
        self._result_after: dict[tuple[int, ...], str] = {}
        for conversation in conversations:
            ids = list(conversation.opening)
            for number, turn in enumerate(conversation.turns):
                reply = [*turn.reply[:-1], end_id]  # TRL cuts at the first end token
                self._replies[tuple(ids)] = reply, number < len(conversation.turns) - 1
                self._result_after[tuple(ids)] = str(len(self.results))
                self.results.append(turn.then)
                ids += [*reply, *turn.then]

    def reply(self, prompt: list[int]) -> list[int]:
        return self._replies[tuple(prompt)][0]

    def message(self, tokenizer: Any, ids: list[int], prefix: list[int], tools: Any) -> dict[str, Any]:
        """Replace `trl.chat_template_utils.parse_response`."""
        if not self._replies[tuple(prefix)][1]:
            return {"role": "assistant", "content": "done"}
        call = {"name": "look_up", "arguments": {"key": self._result_after[tuple(prefix)]}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}


def look_up(key: str) -> str:
    """Finds something.

    Args:
        key: What to find.
    """
    return key


def step_seconds(job: Job, batch: int) -> float:
    """Return the seconds of the fastest of `job.repeats` steps, from the first token to the changed adapter."""
    torch.set_num_threads(job.threads)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    tokenizer.response_schema = {}  # TRL requires one, but the code that would read it is replaced
    script = _Script([group[0] for group in job.groups], tokenizer.eos_token_id)
    grpo_trainer.parse_response = script.message
    openings = [group[0].opening for group in job.groups]

    class Trainer(GRPOTrainer):
        def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict]:
            return [list(openings[int(prompt[0]["content"])]) for prompt in prompts], None, {}

        def _get_tool_suffix_ids(self, tool_messages: list[dict[str, Any]]) -> list[int]:
            return script.results[int(tool_messages[0]["content"])]

    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.started)

    rollouts = len(job.groups[0])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype)),
            reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                max_steps=job.repeats,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=len(job.conversations) // batch,
                num_generations=rollouts,
                max_completion_length=1_000_000,
                temperature=1.0,
                top_k=0,
                beta=0.0,
                learning_rate=1e-4,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict(
                {"prompt": [[{"role": "user", "content": str(i)}] for i in range(len(openings))]}
            ),
            processing_class=tokenizer,
            tools=[look_up],
            peft_config=LoraConfig(
                r=_LORA_RANK,
                lora_alpha=_LORA_ALPHA,
                target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
                task_type="CAUSAL_LM",
            ),
            callbacks=[Clock()],
        )
        sample = trainer.model.generate

        def generate(
            input_ids: torch.Tensor, attention_mask: torch.Tensor, generation_config: Any, **more: Any
        ) -> torch.Tensor:
            prompts = [row[kept.bool()].tolist() for row, kept in zip(input_ids, attention_mask, strict=True)]
            replies = [script.reply(prompt) for prompt in prompts]
            limits = [len(reply) for reply in replies]
            config = copy.deepcopy(generation_config)
            config.eos_token_id, config.max_new_tokens = -1, max(limits)
            stop = StoppingCriteriaList([OwnLimits(input_ids.shape[1], limits)])
            out = sample(
                input_ids=input_ids,
                attention_mask=attention_mask,
                generation_config=config,
                stopping_criteria=stop,
                **more,
            )
            for row, reply in zip(out, replies, strict=True):
                row[input_ids.shape[1] :] = tokenizer.pad_token_id
                row[input_ids.shape[1] : input_ids.shape[1] + len(reply)] = torch.tensor(reply)
            return out

        trainer.model.generate = generate
        trainer.train()
    return min(seconds)


if __name__ == "__main__":
    main()
