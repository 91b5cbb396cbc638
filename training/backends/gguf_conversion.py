"""Turn a GGUF file into a Hugging Face folder of fp32 safetensors.

Runs as a program of its own (`python -m training.backends.gguf_conversion GGUF FOLDER TEMPLATE`), so that the
gigabyte it needs goes back to the system before training starts.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert_gguf(gguf: Path, target: Path, chat_template: Path) -> None:
    """Write config, weights and tokenizer of `gguf` to `target`; the tokenizer gets `chat_template`.

    transformers refuses to save a model that it loaded from GGUF while `quantization_config` is set, and keeps the
    quantized marks on the model object as well: the state dict moves to a model built from the cleaned config.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)

    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    fields.pop("_model_name_or_path", None)
    fields["dtype"] = "float32"
    config = AutoConfig.for_model(**fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    # Generation stops where the chat template says that a turn stops.
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(target)

    tokenizer.chat_template = chat_template.read_text()
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert_gguf(*(Path(argument) for argument in sys.argv[1:]))
