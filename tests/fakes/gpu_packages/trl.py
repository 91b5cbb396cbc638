"""TRL's trainer as ART uses it: ART replaces its inputs, loss and log, so that of transformers is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import Trainer, TrainingArguments


@dataclass
class GRPOConfig(TrainingArguments):
    num_generations: int = 8

    def __post_init__(self) -> None:
        assert self.optim == "paged_adamw_8bit"
        self.optim = "adamw_torch"  # that of bitsandbytes needs CUDA
        self.gradient_checkpointing = False  # Unsloth's own
        self.use_cpu, self.dataloader_pin_memory, self.remove_unused_columns = True, False, False
        super().__post_init__()


class GRPOTrainer(Trainer):
    def __init__(self, *, reward_funcs: list[Any], **given: Any) -> None:
        super().__init__(data_collator=list, **given)
