"""What is done of a fine-tuning, kept on disk so that a killed run continues there.

A warm start of a larger model takes an hour or more on a CPU. It counts once its row is in the history, which may be after
a long validation: a run that is killed before loses the checkpoint, but not what is kept here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from art.preprocessing.tokenize import SFTBatch

from training.backends.torch.adapter_trainer import AdapterTrainer
from training.files import write_text
from training.record.history import checkpoint_digest

_DONE = "done.json"


class UnfinishedSft:
    """Adapter and optimizer after the first batches, the metrics of these batches, and their seconds in all.

    Each state has a folder of its own, named by its number of batches. `done.json` says which one counts.
    """

    def __init__(self, folder: Path, step: int, batches: Sequence[SFTBatch]) -> None:
        """`folder` may exist or not. Anything in it but an intact state of these batches after checkpoint `step` is removed."""
        self._folder = folder
        self._key = _key(step, batches)
        self.metrics: list[dict[str, float]] = []
        self.seconds = 0.0
        try:
            kept = json.loads((folder / _DONE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            kept = {}
        if kept.get("key") == self._key and kept["digest"] == checkpoint_digest(self._state(kept["metrics"])):
            self.metrics, self.seconds = kept["metrics"], kept["seconds"]
            self._remove_all_but(self._state(self.metrics))
        else:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def checkpoint(self) -> Path | None:
        """The folder with the adapter, if batches are done."""
        return self._state(self.metrics) if self.metrics else None

    def keep(self, trainer: AdapterTrainer, metrics: Sequence[dict[str, float]], seconds: float) -> None:
        """Write `trainer` after as many batches as there are metrics, in place of what was kept before."""
        state = self._state(metrics)
        trainer.save(state)
        digest = checkpoint_digest(state)
        done = {"key": self._key, "digest": digest, "metrics": list(metrics), "seconds": seconds}
        write_text(self._folder / _DONE, json.dumps(done))
        self._remove_all_but(state)

    def _state(self, metrics: Sequence[dict[str, float]]) -> Path:
        return self._folder / str(len(metrics))

    def _remove_all_but(self, state: Path) -> None:
        """Remove earlier states, and what a process left that was killed while it wrote one."""
        for entry in self._folder.iterdir():
            if entry.is_dir() and entry != state:
                shutil.rmtree(entry)


def _key(step: int, batches: Sequence[SFTBatch]) -> str:
    """Return the sha256 over the step, and tokens, labels and learning rates of all batches."""
    digest = hashlib.sha256(f"{step} {[batch.learning_rate for batch in batches]}".encode())
    for batch in batches:
        for tensors in batch.trajectory_tensors:
            for name in ("input_ids", "labels"):
                digest.update(tensors[name].numpy().tobytes())
        digest.update(b"batch")
    return digest.hexdigest()
