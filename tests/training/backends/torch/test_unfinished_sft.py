"""What a kill, or damage, leaves of a fine-tuning's kept state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from art.preprocessing.tokenize import SFTBatch

from training.backends.torch import unfinished_sft
from training.backends.torch.unfinished_sft import UnfinishedSft

TENSORS = {name: torch.tensor([[1, 2, 3]]) for name in ("input_ids", "labels")}
BATCHES = [SFTBatch([TENSORS], 1e-3, 1, 3, 3)] * 3


class Trainer:
    """Writes its number of batches in two files, as an adapter and an optimizer."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in ("adapter_model.safetensors", "optimizer.pt"):
            (folder / name).write_text(str(self.batches))


def opened(folder: Path) -> UnfinishedSft:
    return UnfinishedSft(folder / "unfinished_sft", 0, BATCHES)


def keep(kept: UnfinishedSft, batches: int) -> None:
    trainer: Any = Trainer(batches)
    kept.keep(trainer, [{"loss/train": float(n)} for n in range(batches)], 60.0 * batches)


def require_state(folder: Path, batches: int) -> None:
    """The next start continues after `batches` batches, and finds nothing else."""
    found = opened(folder)
    assert found.checkpoint is not None and (len(found.metrics), found.seconds) == (batches, 60.0 * batches)
    assert {file.read_text() for file in found.checkpoint.iterdir()} == {str(batches)}
    assert [entry for entry in found.checkpoint.parent.iterdir() if entry.is_dir()] == [found.checkpoint]


@pytest.mark.parametrize(("where", "left"), [("write_text", 1), ("shutil.rmtree", 2)])
def test_a_kill_while_a_state_is_replaced_leaves_the_old_one_or_the_new_one(
    where: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(opened(tmp_path), 1)
    kept = opened(tmp_path)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(f"{unfinished_sft.__name__}.{where}", die)
        with pytest.raises(KeyboardInterrupt):
            keep(kept, 2)
    require_state(tmp_path, left)
    keep(opened(tmp_path), 3)
    require_state(tmp_path, 3)


def test_a_half_written_state_is_removed(tmp_path: Path) -> None:
    keep(opened(tmp_path), 1)
    partial = tmp_path / "unfinished_sft" / ".2.4711.partial"
    partial.mkdir()
    require_state(tmp_path, 1)


@pytest.mark.parametrize("missing", [True, False])
def test_a_damaged_state_begins_anew(missing: bool, tmp_path: Path) -> None:
    keep(opened(tmp_path), 2)
    state = opened(tmp_path).checkpoint
    assert state is not None
    file = state / "optimizer.pt"
    file.unlink() if missing else file.write_text("torn")
    found = opened(tmp_path)
    assert found.checkpoint is None and not found.metrics and not list(tmp_path.iterdir())
