"""TRL's GRPO trainer as far as ART uses it: the loop of transformers, whose inputs, loss and log ART replaces."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from transformers import Trainer, TrainingArguments


class GRPOConfig(TrainingArguments):
    def __init__(self, *, num_generations: int, optim: str, gradient_checkpointing: bool, **arguments: Any) -> None:
        assert arguments["per_device_train_batch_size"] % num_generations == 0  # as in TRL
        assert optim == "paged_adamw_8bit" and gradient_checkpointing
        super().__init__(**arguments, optim="adamw_torch", use_cpu=True, remove_unused_columns=False)


class GRPOTrainer(Trainer):
    def __init__(
        self, *, model: Any, reward_funcs: list[Any], args: GRPOConfig, train_dataset: Any, processing_class: Any
    ) -> None:
        assert not reward_funcs
        model.warnings_issued["estimate_tokens"] = True
        super().__init__(model, args, lambda rows: rows, train_dataset, processing_class=processing_class)
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.model_accepts_loss_kwargs = False
