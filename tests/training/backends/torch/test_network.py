"""The network as it is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from training.backends.torch.network import load_network
from training.backends.torch.settings import TorchSettings
from training.errors import BadInput

pytestmark = pytest.mark.service

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.is_file(), reason="only Linux tells which files are mapped")
@pytest.mark.parametrize("base_weights", ["auto", "bfloat16", "int8"])
def test_the_file_of_the_weights_does_not_stay_in_memory(
    llama_dir: Path, settings: TorchSettings, tmp_path: Path, base_weights: str
) -> None:
    """Layers keep their weights in a form of their own: the file's would be there twice."""
    folder = shutil.copytree(llama_dir, tmp_path / "model")
    network = load_network(folder, settings.model_copy(update={"base_weights": base_weights}))
    assert len(network.linears) > 0
    assert str(folder) not in MAPS.read_text()


@pytest.mark.parametrize(
    ("chosen", "dtype", "recorded"), [(None, "float32", 896), (None, "bfloat16", 2048), (100, "bfloat16", 100)]
)
def test_the_number_format_decides_how_many_activations_are_kept(
    llama_dir: Path, settings: TorchSettings, chosen: int | None, dtype: str, recorded: int
) -> None:
    changed = settings.model_copy(update={"recorded_tokens": chosen, "matmul_dtype": dtype})
    assert load_network(llama_dir, changed).recorded_tokens == recorded


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gemma"}, "is of the architecture gemma; backend=torch computes llama, mistral, qwen2, qwen3"),
        ({"model_type": "mistral", "sliding_window": 8}, "mistral with a sliding window"),
    ],
)
def test_an_architecture_that_computes_otherwise_is_refused(
    llama_dir: Path, settings: TorchSettings, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    folder = shutil.copytree(llama_dir, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(BadInput, match=named):
        load_network(folder, settings)
