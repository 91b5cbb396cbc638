"""What is done of a fine-tuning, kept on disk so that a killed run continues there.

A warm start of a larger model takes an hour or more on a CPU, and writes its checkpoint at the end.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from art.preprocessing.tokenize import SFTBatch

from training.backends.torch.adapter_trainer import AdapterTrainer

_DONE = "done.json"


class UnfinishedSft:
    """Adapter and optimizer after the first batches, the metrics of these batches, and their seconds in all."""

    def __init__(self, folder: Path, step: int, batches: Sequence[SFTBatch]) -> None:
        """`folder` may exist or not. What other batches, or others than those after checkpoint `step`, left in it is removed."""
        self._folder = folder
        self._state = folder / "state"
        self._key = _key(step, batches)
        self.metrics: list[dict[str, float]] = []
        self.seconds = 0.0
        try:
            kept = json.loads((self._state / _DONE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = {}
        if kept.get("key") == self._key:
            self.metrics, self.seconds = kept["metrics"], kept["seconds"]
        else:
            self.remove()

    @property
    def checkpoint(self) -> Path | None:
        """The folder with the adapter, if batches are done."""
        return self._state if self.metrics else None

    def keep(self, trainer: AdapterTrainer, metrics: Sequence[dict[str, float]], seconds: float) -> None:
        """Write `trainer` after as many batches as there are metrics, in place of what was kept before."""
        done = {"key": self._key, "metrics": list(metrics), "seconds": seconds}
        trainer.save(self._state, {_DONE: json.dumps(done)})

    def remove(self) -> None:
        """Remove all of it, and what a process left that was killed while it wrote."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _key(step: int, batches: Sequence[SFTBatch]) -> str:
    """Return the sha256 over the step, and tokens, labels and learning rates of all batches."""
    digest = hashlib.sha256(f"{step} {[batch.learning_rate for batch in batches]}".encode())
    for batch in batches:
        for tensors in batch.trajectory_tensors:
            for name in ("input_ids", "labels"):
                digest.update(tensors[name].numpy().tobytes())
        digest.update(b"batch")
    return digest.hexdigest()
