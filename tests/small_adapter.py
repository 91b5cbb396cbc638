"""An adapter of a few numbers, without a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from training.checkpoint import ADAPTER_CONFIG, ADAPTER_WEIGHTS

MODULE = "base_model.model.model.layers.0.self_attn.q_proj"


def write_small_adapter(folder: Path, *, rank: int = 2, value: float = 1.0, **config: object) -> Path:
    """Write an adapter of one projection from 3 to 4 features, with a file that is no part of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps({"r": rank, "lora_alpha": 4.0, **config}))
    matrices = {"A": np.full((rank, 3), value, "float32"), "B": np.ones((4, rank), "float32")}
    save_file({f"{MODULE}.lora_{side}.weight": m for side, m in matrices.items()}, folder / ADAPTER_WEIGHTS)
    (folder / "optimizer.pt").write_bytes(b"not part of a checkpoint")
    return folder
