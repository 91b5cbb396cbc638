"""Compare collecting a step ahead of the optimizer with collecting in sequence, for training with a slow judge.

  python -m benchmarks.gathering_ahead [--steps 8] [--latency 1.5] [--ahead 1]

The judge is an OpenAI-compatible server on loopback that waits `--latency` seconds before each reply; the policy is a tiny random
model on the torch backend. Its rollouts and updates take turns in one thread, so only the judge's time can be saved. Both
variants run the same steps on the same questions. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Otherwise LiteLLM's import waits for a price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import art
import openai
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from benchmarks.output import progress, show
from benchmarks.ruler import judge
from training.history import StepRecord
from training.session import run_training
from training.settings import TrainerSettings
from training.task import Policy

QUESTIONS = 16
TEXT = "user assistant question, which was asked before another question was answered"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Chatter:
    """A task whose rollouts are single replies; implements `training.task.Task`. All rewards are the judge's."""

    name = "chatter"

    def train_scenarios(self) -> list[str]:
        return [f"Question {number}?" for number in range(QUESTIONS)]

    def demonstrations(self, scenarios: Sequence[str], limit: int) -> list[art.Trajectory]:
        return []

    async def rollout(self, policy: Policy, scenario: str) -> art.Trajectory:
        asked: list[Any] = [{"role": "user", "content": scenario}]
        async with openai.AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=0) as client:
            reply = await client.chat.completions.create(
                model=policy.model,
                messages=asked,
                temperature=policy.temperature,
                max_tokens=policy.max_tokens,
                logprobs=True,
            )
        return art.Trajectory(messages_and_choices=[*asked, reply.choices[0]], metadata={"scenario_id": scenario})


def save_model(folder: Path) -> Path:
    """Save a tokenizer of little more than bytes, and random weights of a four-layer Llama."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", additional_special_tokens=special
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def train(base_model: Path, settings: TrainerSettings) -> list[StepRecord]:
    with tempfile.TemporaryDirectory() as folder:
        run = run_training(
            Chatter(), base_model=str(base_model), settings=settings, max_tokens=32, run_folder=Path(folder)
        )
        return asyncio.run(run).history


def measure(base_model: Path, settings: TrainerSettings, ahead: int) -> dict[str, float]:
    progress("one step, to import what the first one needs")
    train(base_model, settings.model_copy(update={"max_steps": 1}))
    progress(f"{settings.max_steps} steps, one after the other")
    in_turn = train(base_model, settings)
    progress(f"the same, {ahead} ahead")
    overlapped = train(base_model, settings.model_copy(update={"max_steps_off_policy": ahead}))
    for rows in (in_turn, overlapped):
        assert all(row.groups_trained == settings.groups_per_step for row in rows), "the judge tells all rollouts apart"
        assert all(row.judge_requests == settings.groups_per_step for row in rows), "every group is judged once"
    oldest = max(row.off_policy_steps for row in overlapped)
    assert oldest <= ahead, "no group is older than the bound"
    seconds = {"in_turn_s": sum(row.seconds for row in in_turn), "ahead_s": sum(row.seconds for row in overlapped)}
    return {
        **{name: round(value, 2) for name, value in seconds.items()},
        "update_s": round(sum(row.update_seconds or 0.0 for row in in_turn), 2),
        "off_policy_steps": oldest,
        "ratio": round(seconds["ahead_s"] / seconds["in_turn_s"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--latency", type=float, default=1.5, metavar="SECONDS")
    parser.add_argument("--ahead", type=int, default=1, metavar="STEPS")
    options = parser.parse_args()
    with judge(options.latency) as address, tempfile.TemporaryDirectory() as folder:
        settings = TrainerSettings(
            max_steps=options.steps,
            groups_per_step=2,
            rollouts_per_group=4,
            demonstrations=0,
            validate_every=0,
            scoring="ruler",
            ruler_model="openai/judge",
            ruler_api_base=address,
            lora_rank=4,
            max_context=512,
        )
        figures = measure(save_model(Path(folder)), settings, options.ahead)
    rows = [
        ("one after the other", figures["in_turn_s"]),
        (f"{options.ahead} gathered ahead", figures["ahead_s"]),
        ("ratio", figures["ratio"]),
    ]
    show(f"{options.steps} steps, a judge that takes {options.latency:g} s", ("", "seconds"), rows)
    print(json.dumps({"steps": options.steps, "latency_s": options.latency, "ahead": options.ahead, **figures}))


if __name__ == "__main__":
    main()
