"""Which checkpoints of a run stay on disk, and which rows of its history they support."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from training.backends.torch.settings import UNFINISHED_SFT
from training.guard.stopping import best_row
from training.record.history import CHECKPOINTS, HISTORY_FILE, StepRecord, read_history, rewind, without_damaged_end
from training.settings import TrainerSettings


def resumable_rows(model_dir: Path, warn: Callable[[str], None]) -> list[StepRecord]:
    """Return the rows after which the run continues. Remove everything later, such as rows of a damaged checkpoint."""
    written = read_history(model_dir / HISTORY_FILE)
    rows = without_damaged_end(model_dir, written)
    if len(rows) < len(written):
        again = f"after step {rows[-1].step}" if rows else "from the start"
        warn(f"the checkpoint of step {written[-1].step} is damaged or gone: resuming {again}")
    rewind(model_dir, rows)
    return rows


def prune_checkpoints(
    model_dir: Path, rows: Sequence[StepRecord], settings: TrainerSettings, in_use: Collection[int] = ()
) -> None:
    """Delete checkpoints except those `in_use`, the first, the best validated, the latest and the one before it.

    The one before the latest is kept in case the latest is damaged. The state of a warm start goes, since its row is written.
    """
    shutil.rmtree(model_dir / UNFINISHED_SFT, ignore_errors=True)
    keep = {*in_use, rows[0].checkpoint_step, *sorted({row.checkpoint_step for row in rows})[-2:]}
    if (best := best_row(rows, settings)) is not None:
        keep.add(best.checkpoint_step)
    for folder in (model_dir / CHECKPOINTS).glob("[0-9]*"):
        if folder.name.isdigit() and int(folder.name) not in keep:
            shutil.rmtree(folder)
