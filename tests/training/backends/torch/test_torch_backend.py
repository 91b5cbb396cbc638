"""The backend through ART's own front door: roll out, train, serve the new step, resume."""

from __future__ import annotations

import asyncio
import math
import shutil
from contextlib import aclosing
from pathlib import Path
from typing import Any

import art
import openai
import pytest
import torch
from art.preprocessing.tokenize import SFTBatch, tokenize_trajectory
from art.trajectories import History
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.training.backends.torch.tiny_models import save_tiny_model
from training.backends.torch import TorchBackend, TorchSettings, service
from training.backends.torch.adapter_trainer import AdapterTrainer
from training.backends.torch.backend import tokenize_demonstrations
from training.backends.torch.chat_format import ChatFormat

pytestmark = pytest.mark.service

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"keywords": {"type": "array"}}},
            "description": "search the mails",
        },
    }
]


def new_model(base: Path, name: str = "policy") -> art.TrainableModel:
    return art.TrainableModel(name=name, project="tests", base_model=str(base))


def asking(model: art.TrainableModel) -> openai.AsyncOpenAI:
    """A client of the model's server. It loads no certificates, which takes longer than an answer."""
    plain = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=model.inference_base_url, api_key="none", http_client=plain)


async def rollout(model: art.TrainableModel, question: str, number: int) -> tuple[art.Trajectory, list[int]]:
    """Three turns as an agent plays them, and the ids that the server conditioned on in the end."""
    client = asking(model)
    messages: list[Any] = [{"role": "system", "content": "read the mails"}, {"role": "user", "content": question}]
    trajectory = art.Trajectory(messages_and_choices=list(messages), tools=TOOLS, reward=float(number % 3))
    for turn in range(3):
        reply = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=messages,
            tools=TOOLS,
            max_tokens=5 + number,
            seed=number + turn,
            logprobs=True,
            extra_body={"prompt_cache_key": f"{question}{number}", "return_token_ids": True},
        )
        choice = reply.choices[0]
        trajectory.messages_and_choices.append(choice)
        tool = {"role": "tool", "tool_call_id": "call", "content": f"mail {turn} of {number}"}
        messages += [choice.message.model_dump(exclude_none=True), tool]
        if turn < 2:
            trajectory.messages_and_choices.append(tool)
    sampled = [int(token.token.split(":")[1]) for token in choice.logprobs.content]
    await client.close()
    return trajectory, [*reply.prompt_token_ids, *sampled]


async def rollouts(model: art.TrainableModel) -> tuple[list[art.TrajectoryGroup], list[list[list[int]]]]:
    groups, ids = [], []
    for question in ("who?", "when?"):
        played = await asyncio.gather(*(rollout(model, question, number) for number in range(4)))
        groups.append(art.TrajectoryGroup([trajectory for trajectory, _ in played]))
        ids.append([conditioned for _, conditioned in played])
    return groups, ids


def tokenized(tokenizer: Any, trajectory: art.Trajectory) -> tuple[list[int], list[int]]:
    """Return the ids that ART makes of a trajectory, and those of them that it trains."""
    history = History(messages_and_choices=trajectory.messages_and_choices, tools=trajectory.tools)
    options = {"chat_template_tool_schema_format": "vllm_openai"}
    result = tokenize_trajectory(tokenizer, None, history, 1.0, False, trajectory, **options)
    assert result is not None
    return result.token_ids, [i for i, m in zip(result.token_ids, result.assistant_mask, strict=True) if m]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_rollouts_train_the_sampled_tokens_in_their_real_context(
    family: str, tmp_path: Path, settings: TorchSettings
) -> None:
    base = save_tiny_model(tmp_path / "base", family)

    async def run() -> None:
        backend = TorchBackend(path=str(tmp_path / "art"), settings=settings)
        model = new_model(base)
        await model.register(backend)
        tokenizer = AutoTokenizer.from_pretrained(base)
        for step in range(3):
            assert model.get_inference_name() == f"policy@{step}"
            groups, conditioned = await rollouts(model)
            for group, ids_of_group in zip(groups, conditioned, strict=True):
                for trajectory, ids in zip(group, ids_of_group, strict=True):
                    token_ids, trained = tokenized(tokenizer, trajectory)
                    assert token_ids[: len(ids)] == ids
                    choices = [m for m in trajectory.messages_and_choices if not isinstance(m, dict)]
                    assert trained == [int(t.token.split(":")[1]) for c in choices for t in c.logprobs.content]
                    assert trajectory.additional_histories == []
            result = await backend.train(model, groups, learning_rate=1e-2)
            assert result.step == step + 1
            assert result.metrics["loss/ratio_mean"] == pytest.approx(1, abs=1e-3)
            assert result.metrics["loss/ratio_max"] == pytest.approx(1, abs=1e-3)
            assert result.metrics["loss/grad_norm"] > 0
            assert await model.get_step() == step + 1
        await backend.close()

    asyncio.run(run())


def test_replies_at_a_decision_train_their_own_tokens_and_share_the_prompt(
    llama_dir: Path, tmp_path: Path, settings: TorchSettings
) -> None:
    async def run() -> None:
        backend = TorchBackend(path=str(tmp_path / "art"), settings=settings)
        model = new_model(llama_dir)
        await model.register(backend)
        client = openai.AsyncOpenAI(base_url=model.inference_base_url, api_key="none")

        async def replies(messages: list[Any], count: int, conversation: str) -> Any:
            return await client.chat.completions.create(
                model=model.get_inference_name(),
                messages=messages,
                tools=TOOLS,
                n=count,
                max_tokens=9,
                logprobs=True,
                extra_body={"prompt_cache_key": conversation, "return_token_ids": True},
            )

        opening = [{"role": "system", "content": "read the mails"}, {"role": "user", "content": "who?"}]
        first = (await replies(opening, 1, "episode")).choices[0]
        # An untrained model samples bytes that its tokenizer would merge, so the text alone does not tell the sampled ids.
        state = [*opening, {"role": "assistant", "content": first.message.content or ""}]
        state.append({"role": "tool", "tool_call_id": "call", "content": "mail 1"})
        branches = await replies(state, 4, "branch")
        group = art.TrajectoryGroup(
            art.Trajectory(messages_and_choices=[*state, choice], tools=TOOLS, reward=float(choice.index))
            for choice in branches.choices
        )
        prompt, total = branches.prompt_token_ids, 0
        for trajectory, choice in zip(group, branches.choices, strict=True):
            sampled = [int(token.token.split(":")[1]) for token in choice.logprobs.content]
            total += 1 + len(sampled)
            token_ids, trained = tokenized(AutoTokenizer.from_pretrained(llama_dir), trajectory)
            assert token_ids[: len(prompt) + len(sampled)] == [*prompt, *sampled] and trained == sampled
        packed = backend._get_packed_tensors(model, [group], 0.0, False, True, False, None, 1024)
        assert packed is not None
        # ART's prompts end one token early. The one after each reply, which closes it, is the template's.
        stored = int((packed["group_ids"] != -1).sum())
        assert len(prompt) - 1 + total <= stored <= len(prompt) - 1 + total + 2 * len(group.trajectories)
        result = await backend.train(model, [group], learning_rate=1e-2)
        assert result.metrics["loss/ratio_mean"] == pytest.approx(1, abs=1e-3)
        await client.close()
        await backend.close()

    asyncio.run(run())


def test_the_checkpoint_loads_in_peft_and_serves_the_same_policy(
    llama_dir: Path, tmp_path: Path, settings: TorchSettings
) -> None:
    async def run() -> tuple[str, Any]:
        backend = TorchBackend(path=str(tmp_path), settings=settings)
        model = new_model(llama_dir)
        await model.register(backend)
        groups, _ = await rollouts(model)
        result = await backend.train(model, groups, learning_rate=1e-1)
        client = asking(model)
        reply = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=[{"role": "user", "content": "who?"}],
            max_tokens=12,
            logprobs=True,
            extra_body={"return_token_ids": True},
        )
        with pytest.raises(openai.NotFoundError, match="no checkpoint of step 7"):
            await client.chat.completions.create(model="policy@7", messages=[{"role": "user", "content": "who?"}])
        await client.close()
        await backend.close()
        return result.checkpoint_path, reply

    folder, reply = asyncio.run(run())
    assert sorted(p.name for p in Path(folder).parent.iterdir()) == ["0001"]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama_dir), folder)
    content = reply.choices[0].logprobs.content
    sampled = [int(token.token.split(":")[1]) for token in content]
    ids = torch.tensor([[*reply.prompt_token_ids, *sampled]])
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    start = len(reply.prompt_token_ids)
    expected = [float(logprobs[start + i - 1, token]) for i, token in enumerate(sampled)]
    assert [token.logprob for token in content] == pytest.approx(expected, abs=1e-4)


def demonstration(reply: str) -> art.Trajectory:
    call = '<tool_call>\n{"name": "search", "arguments": {"keywords": ["mails"]}}\n</tool_call>'
    return art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "read the mails"},
            {"role": "user", "content": "who?"},
            {"role": "assistant", "content": call},
            {"role": "tool", "tool_call_id": "1", "content": "mail 4"},
            {"role": "assistant", "content": reply},
        ],
        tools=TOOLS,
    )


def test_demonstrations_train_replies_and_their_end_tokens(llama_dir: Path) -> None:
    chat = ChatFormat(AutoTokenizer.from_pretrained(llama_dir))
    batch = tokenize_demonstrations(chat, [demonstration("the assistant")], 1e-3, 1024)
    tensors = batch.trajectory_tensors[0]
    labels = tensors["labels"][0]
    trained = chat.tokenizer.decode(labels[labels != -100])
    call = '<tool_call>\n{"name": "search", "arguments": {"keywords": ["mails"]}}\n</tool_call>'
    assert trained == f"{call}<|im_end|>the assistant<|im_end|>"
    text = chat.tokenizer.decode(tensors["input_ids"][0])
    assert text.endswith("<|im_start|>assistant\nthe assistant<|im_end|>\n")
    assert batch.num_trainable_tokens == int((labels != -100).sum())
    # The context of each reply is tokenized as the server tokenizes a prompt.
    messages = demonstration("the assistant").messages()
    prompt = chat.encode(messages[:2], TOOLS)
    assert tensors["input_ids"][0][: len(prompt)].tolist() == prompt
    assert tokenize_demonstrations(chat, [demonstration("x")] * 2, 1e-3, 10).num_dropped_trajectories == 2


def test_fine_tuning_teaches_and_survives_a_restart(llama_dir: Path, tmp_path: Path) -> None:
    settings = TorchSettings(
        device="cpu", threads=1, matmul_dtype="float32", lora_layers=None, kv_cache_tokens=2048, lora_plus_ratio=1.0
    )
    demos = [demonstration("the assistant") for _ in range(4)]

    async def run(steps: int) -> tuple[art.LocalTrainResult, str]:
        backend = TorchBackend(path=str(tmp_path), settings=settings)
        model = new_model(llama_dir)
        await model.register(backend)
        for _ in range(steps):
            result = await backend.train_sft(model, demos, learning_rate=2e-2, batch_size=2)
        client = asking(model)
        reply = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=demos[0].messages()[:2],
            tools=TOOLS,
            temperature=0,
            max_tokens=60,
        )
        await client.close()
        await backend.close()
        return result, reply.choices[0].finish_reason

    first, _ = asyncio.run(run(1))
    last, reason = asyncio.run(run(14))
    assert (first.step, last.step) == (1, 15)
    assert last.metrics["loss/train"] < first.metrics["loss/train"] / 10
    assert reason == "tool_calls"


def test_a_killed_fine_tuning_continues(
    llama_dir: Path, tmp_path: Path, settings: TorchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_KEPT_EVERY", 0.0)
    config = art.TrainSFTConfig(learning_rate=[2e-2, 1e-2, 5e-3, 1e-3, 1e-4], batch_size=1)
    taught: list[float] = []
    useless: list[float] = []
    sft_step = AdapterTrainer.sft_step

    def observed(trainer: AdapterTrainer, batch: SFTBatch) -> dict[str, float]:
        taught.append(batch.learning_rate)
        return sft_step(trainer, batch) | ({"loss/grad_norm": math.nan} if batch.learning_rate in useless else {})

    monkeypatch.setattr(AdapterTrainer, "sft_step", observed)

    async def rows(folder: str, words: str, batches: int) -> list[dict[str, float]]:
        """Train until `batches` are done, then close the backend. Return their metrics."""
        backend = TorchBackend(path=str(tmp_path / folder), settings=settings)
        model = new_model(llama_dir)
        await model.register(backend)
        taught.clear()
        learnt = [demonstration(word) for word in words.split()]
        async with aclosing(backend._train_sft(model, learnt, config, {})) as metrics:
            found = [await anext(metrics) for _ in range(batches)]
        await backend.close()
        return found

    def adapter(folder: str) -> dict[str, torch.Tensor]:
        [file] = (tmp_path / folder).rglob("checkpoints/0001/adapter_model.safetensors")
        return load_file(file)

    words = "the assistant has three mails"
    losses = [row["loss/train"] for row in asyncio.run(rows("straight", words, 5))]
    asyncio.run(rows("killed", words, 3))
    continued = asyncio.run(rows("killed", words, 5))
    assert taught == [1e-3, 1e-4] and [row["loss/train"] for row in continued] == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(adapter("killed"), adapter("straight"), atol=1e-5, rtol=1e-4)
    assert [number for number, row in enumerate(continued) if "time/earlier_s" in row] == [2]
    assert continued[2]["time/earlier_s"] > 0
    [checkpoint] = (tmp_path / "killed").rglob("checkpoints/0001")
    shutil.rmtree(checkpoint)
    again = asyncio.run(rows("killed", words, 5))
    assert not taught and again[4]["time/earlier_s"] > 0, "a checkpoint without a row is lost, the batches are not"
    torch.testing.assert_close(adapter("killed"), adapter("straight"), atol=1e-5, rtol=1e-4)
    asyncio.run(rows("other", words, 3))
    asyncio.run(rows("other", "mails three has assistant the", 5))
    assert len(taught) == 5, "other demonstrations begin anew"
    useless.append(5e-3)
    asyncio.run(rows("useless", words, 3))
    useless.clear()
    again = asyncio.run(rows("useless", words, 5))
    assert taught == [5e-3, 1e-3, 1e-4] and all(math.isfinite(row["loss/grad_norm"]) for row in again), (
        "weights that are not finite are not kept"
    )
    useless.append(1e-4)
    asyncio.run(rows("useless at the end", words, 5))
    [checkpoint] = (tmp_path / "useless at the end").rglob("checkpoints/0001")
    shutil.rmtree(checkpoint)
    asyncio.run(rows("useless at the end", words, 5))
    assert taught == [1e-4]


def test_art_sft_entry_point(llama_dir: Path, tmp_path: Path, settings: TorchSettings) -> None:
    async def run() -> int:
        backend = TorchBackend(path=str(tmp_path), settings=settings)
        model = new_model(llama_dir)
        await model.register(backend)
        await model.train_sft([demonstration("the")] * 3, art.TrainSFTConfig(learning_rate=[1e-3, 1e-4], batch_size=2))
        step = await model.get_step()
        await backend.close()
        return step

    assert asyncio.run(run()) == 1
