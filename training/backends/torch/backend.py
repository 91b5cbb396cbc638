"""`TorchBackend`: ART's local backend with plain PyTorch instead of vLLM and Unsloth.

Registration, tokenizing of rollouts, advantages, packing, history and checkpoint pruning stay ART's. Replaced are the
service, the tokenizing of demonstrations (ART's imports Unsloth) and the choice of the packed length.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from art import dev
from art.backend import AnyTrainableModel
from art.local import LocalBackend
from art.metrics_taxonomy import TRAIN_GRADIENT_STEPS_KEY, average_metric_samples
from art.model import TrainableModel
from art.preprocessing.pack import PackedTensors, packed_tensors_from_tokenized_results, plot_packed_tensors
from art.preprocessing.tokenize import SFTBatch, TokenizedResult, tokenize_trajectory_groups
from art.trajectories import Trajectory, TrajectoryGroup, get_messages
from art.types import LocalTrainResult, TrainSFTConfig
from art.utils.output_dirs import get_model_dir, get_step_checkpoint_dir
from art.utils.sft import resolve_sft_batch_size
from transformers import PreTrainedTokenizerBase

from training.backends.prompt_template import load_tokenizer
from training.backends.torch.chat_format import ChatFormat
from training.backends.torch.service import TorchService
from training.backends.torch.settings import TorchSettings
from training.errors import BadInput
from training.scoring.turn_credit import credited_tokens, turn_advantages


class TorchBackend(LocalBackend):
    """Trains and serves on this machine, CPU or CUDA. A model's `base_model` must be a local folder or cached id."""

    def __init__(self, *, path: str | None = None, settings: TorchSettings | None = None) -> None:
        super().__init__(in_process=True, path=path)
        self._settings = settings or TorchSettings()
        self._default_chat_template_tool_schema_format = "vllm_openai"  # the order in which the server renders tools

    async def _get_service(self, model: TrainableModel) -> TorchService:
        if model.name not in self._services:
            self._services[model.name] = TorchService(
                model.name, model.base_model, get_model_dir(model=model, art_path=self._path), self._settings
            )
        return cast(TorchService, self._services[model.name])

    async def train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[Trajectory],
        *,
        learning_rate: float | list[float] = 1e-3,
        batch_size: int = 8,
    ) -> LocalTrainResult:
        """Fine-tune on demonstrations, one optimizer step per `batch_size` of them, in the given order.

        A list gives each batch its learning rate. Like `train` it logs nothing; unlike ART's `model.train_sft`.
        """
        config = TrainSFTConfig(learning_rate=learning_rate, batch_size=batch_size)
        started = time.monotonic()
        samples = [metrics async for metrics in self._train_sft(model, trajectories, config, {})]
        metrics = average_metric_samples(samples)
        metrics["time/step_trainer_s"] = time.monotonic() - started
        step = await self._get_step(model)
        folder = get_step_checkpoint_dir(get_model_dir(model=model, art_path=self._path), step)
        return LocalTrainResult(step=step, metrics=metrics, checkpoint_path=folder if samples else None)

    async def _train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig,
        dev_config: dev.TrainSFTConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        size = resolve_sft_batch_size(batch_size=config.batch_size, default_batch_size=self._default_sft_batch_size())
        everything = list(trajectories)
        rates = config.learning_rate if isinstance(config.learning_rate, list) else [config.learning_rate]
        starts = range(0, len(everything), size)
        if isinstance(config.learning_rate, list) and len(rates) < len(starts):
            raise BadInput(f"{len(starts)} batches of {size} need as many learning rates; {len(rates)} were given.")
        chat = ChatFormat(self._tokenizer(model))
        limit = self._max_length(model, chat.tokenizer)
        batches = [
            tokenize_demonstrations(chat, everything[start : start + size], rate, limit)
            for start, rate in zip(starts, itertools.cycle(rates), strict=False)
        ]
        service = await self._get_service(cast(TrainableModel, model))
        async for metrics in service.train_sft(batches, config.model_copy(update={"batch_size": size}), verbose):
            yield {
                **metrics,
                "data/step_num_trajectories": float(len(everything)),
                "data/step_trainer_tokens": float(sum(batch.num_trainable_tokens for batch in batches)),
                "data/step_num_dropped_trajectories": float(sum(b.num_dropped_trajectories for b in batches)),
                TRAIN_GRADIENT_STEPS_KEY: float(len(batches)),
            }

    def _get_packed_tensors(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        advantage_balance: float,
        allow_training_without_logprobs: bool,
        scale_rewards: bool,
        plot_tensors: bool,
        packed_sequence_length: int | None,
        logprob_calculation_chunk_size: int,
    ) -> PackedTensors | None:
        """ART's packing, with rows long enough that the trajectories of a group share their prompt.

        Rows hold indices, not activations: the update bounds its memory by itself.
        """
        tokenizer = self._tokenizer(model)
        limit = self._max_length(model, tokenizer)
        results = [
            result
            for result in tokenize_trajectory_groups(
                tokenizer,
                trajectory_groups,
                allow_training_without_logprobs,
                scale_rewards,
                drop_zero_advantage_trajectories=not self._settings.turn_credit,
                chat_template_kwargs=(model._internal_config or {}).get("chat_template_kwargs"),
                chat_template_tool_schema_format=self._chat_template_tool_schema_format(model._internal_config or {}),
            )
            if len(result.token_ids) <= (packed_sequence_length or limit)
        ]
        of_turns = _turn_advantages(trajectory_groups, scale_rewards) if self._settings.turn_credit else {}
        if of_turns:
            results = [result for result in results if result.advantage or any(of_turns[id(result.trajectory)])]
        if not any(sum(result.assistant_mask) for result in results):
            return None
        if not _learnt_from(results, of_turns, self._settings.turn_credit, advantage_balance):
            return None  # normalising by a mean of 0 would make every advantage nan
        if self._settings.turn_credit:
            _number_tokens(results)
        packed = packed_tensors_from_tokenized_results(
            results,
            packed_sequence_length or max(_group_lengths(results)),
            pad_token_id=cast(int, tokenizer.eos_token_id),
            truncate_long_results=False,
            advantage_balance=advantage_balance,
        )
        if not allow_training_without_logprobs and bool(packed["logprobs"].isnan().all()):
            return None
        if self._settings.turn_credit:
            _credit_turns(packed, results, of_turns, self._settings.turn_credit, advantage_balance)
        if plot_tensors:
            plot_packed_tensors(packed, get_model_dir(model=model, art_path=self._path))
        return packed

    def _tokenizer(self, model: AnyTrainableModel) -> PreTrainedTokenizerBase:
        key = (model.base_model, None)
        if key not in self._tokenizers:
            self._tokenizers[key] = load_tokenizer(model.base_model)
        return self._tokenizers[key]

    def _max_length(self, model: AnyTrainableModel, tokenizer: PreTrainedTokenizerBase) -> int:
        configured: dict[str, Any] = (model._internal_config or {}).get("init_args", {})
        return int(configured.get("max_seq_length") or min(tokenizer.model_max_length, self._settings.kv_cache_tokens))


def tokenize_demonstrations(
    chat: ChatFormat, trajectories: list[Trajectory], learning_rate: float, max_length: int
) -> SFTBatch:
    """ART's SFT batch: the labelled tokens are each assistant message with the end token that closes it.

    Prompt and reply are tokenized apart, as they are when the model replies to a prompt. Trajectories longer than
    `max_length` tokens are dropped and counted.
    """
    tensors = []
    for trajectory in trajectories:
        ids, labels = _labelled_ids(chat, trajectory)
        if len(ids) <= max_length:
            tensors.append(
                {
                    "input_ids": torch.tensor([ids]),
                    "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
                    "labels": torch.tensor([labels]),
                }
            )
    return SFTBatch(
        trajectory_tensors=tensors,
        learning_rate=learning_rate,
        num_trajectories=len(tensors),
        num_tokens=sum(t["input_ids"].numel() for t in tensors),
        num_trainable_tokens=sum(int((t["labels"] != -100).sum()) for t in tensors),
        num_dropped_trajectories=len(trajectories) - len(tensors),
    )


def _labelled_ids(chat: ChatFormat, trajectory: Trajectory) -> tuple[list[int], list[int]]:
    messages = cast(list[dict[str, Any]], get_messages(trajectory.messages_and_choices))
    tools = cast(list[dict[str, Any]] | None, trajectory.tools)
    ids: list[int] = []
    labels: list[int] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = chat.render(messages[:index], tools, open_reply=True)
        closed = chat.render(messages[: index + 1], tools, open_reply=False)
        if not (prompt.startswith(done) and closed.startswith(prompt)):
            raise BadInput("The chat template rewrites earlier messages; demonstrations cannot be labelled with it.")
        context = chat.tokenize(prompt[len(done) :])
        reply = chat.tokenize(closed[len(prompt) :])
        # What follows the end token is the template's, not the model's.
        end = max((i + 1 for i, token in enumerate(reply) if token in chat.special_ids), default=len(reply))
        ids += context + reply
        labels += [-100] * len(context) + reply[:end] + [-100] * (len(reply) - end)
        done = closed
    return ids, labels


def _turn_advantages(groups: Sequence[TrajectoryGroup], scale: bool) -> dict[int, list[float]]:
    """Return the advantages of the turns of each trajectory, by its `id`.

    Raises:
        BadInput: a rollout consists of several conversations.
    """
    of_turns: dict[int, list[float]] = {}
    for group in groups:
        if any(trajectory.additional_histories for trajectory in group.trajectories):
            raise BadInput("turn_credit needs rollouts that are one conversation each: set it to 0")
        advantages = turn_advantages(group.trajectories, scale=scale)
        of_turns.update((id(t), turns) for t, turns in zip(group.trajectories, advantages, strict=True))
    return of_turns


def _learnt_from(
    results: Sequence[TokenizedResult], of_turns: Mapping[int, Sequence[float]], credit: float, balance: float
) -> bool:
    """Return whether a sampled token keeps an advantage, where a `balance` of 1 or -1 drops those of one sign.

    Rollouts that are too long for the update are left out after the advantages were computed, so the others may all be
    below the mean.
    """

    def kept(advantage: float) -> bool:
        return bool(advantage) and not (balance == 1 and advantage < 0) and not (balance == -1 and advantage > 0)

    return any(
        kept(result.advantage + credit * turn)
        for result in results
        for turn in (of_turns[id(result.trajectory)] if of_turns else [0.0])
        if any(result.assistant_mask)
    )


def _number_tokens(results: Sequence[TokenizedResult]) -> None:
    """Encode in `input_pos` the result and position of each token, because packing shuffles results and keeps one
    advantage for each.
    """
    stride = _stride(results)
    for number, result in enumerate(results):
        result.input_pos = [number * stride + position for position in result.input_pos]


def _credit_turns(
    packed: PackedTensors,
    results: Sequence[TokenizedResult],
    of_turns: Mapping[int, Sequence[float]],
    credit: float,
    balance: float,
) -> None:
    """Add `credit` times the advantages of turns to those of their trajectories, normalised as ART's packing does."""
    stride = _stride(results)
    table = torch.zeros(len(results), stride)
    for row, result in zip(table, results, strict=True):
        turns = of_turns[id(result.trajectory)]
        row[: len(result.token_ids)] = torch.tensor(
            credited_tokens(result.assistant_mask, result.advantage, turns, credit)
        )
    mask, numbered = packed["assistant_mask"], packed["input_pos"]
    packed["input_pos"] = numbered % stride
    credited = torch.where(mask, table[numbered // stride, numbered % stride], 0.0)
    if balance:
        shrunk = credited < 0 if balance > 0 else credited > 0
        credited = torch.where(shrunk, credited * (1 - abs(balance)), credited)
    credited[mask] /= (credited[mask].abs() * packed["weights"][mask]).mean()
    packed["advantages"] = credited


def _stride(results: Sequence[TokenizedResult]) -> int:
    return max(len(result.token_ids) for result in results)


def _group_lengths(results: Iterable[TokenizedResult]) -> list[int]:
    """Tokens of each group when its prompt is stored once (at least as long as its longest trajectory)."""
    lengths: dict[int, int] = {}
    for result in results:
        lengths.setdefault(result.prompt_id, result.prompt_length)
        lengths[result.prompt_id] += len(result.token_ids) - result.prompt_length
    return list(lengths.values())
