"""Which policies of a training run are asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from steps.evaluation.run_inference import adapters_to_ask


def checkpoint(step: int, checksum: str) -> Any:
    return SimpleNamespace(path=Path(checksum), manifest=SimpleNamespace(step=step, adapter_checksum=checksum))


def test_a_warm_start_is_a_row_only_where_there_was_one() -> None:
    trained, warm_start = checkpoint(6, "a"), checkpoint(0, "b")
    assert list(adapters_to_ask(trained, warm_start)) == ["warm_start", "trained"]
    assert list(adapters_to_ask(trained, None)) == ["trained"]
    assert list(adapters_to_ask(trained, trained)) == ["trained"], "a run without demonstrations has no warm start"
    assert list(adapters_to_ask(checkpoint(0, "b"), warm_start)) == ["warm_start"], "the best checkpoint is the warm start"
