"""Selection of the policies of a training run to evaluate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from configs.schema import EvaluationConfig
from steps.evaluation.run_inference import adapters_to_ask, question_limit


def checkpoint(step: int, checksum: str, **config: Any) -> Any:
    manifest = SimpleNamespace(step=step, adapter_checksum=checksum, config=config)
    return SimpleNamespace(path=Path(checksum), manifest=manifest)


def test_a_warm_start_is_a_row_only_where_there_was_one() -> None:
    trained, warm_start = checkpoint(6, "a"), checkpoint(0, "b")
    assert list(adapters_to_ask(trained, warm_start)) == ["warm_start", "trained"]
    assert list(adapters_to_ask(trained, None)) == ["trained"]
    assert list(adapters_to_ask(trained, trained)) == ["trained"], "a run without demonstrations has no warm start"
    assert list(adapters_to_ask(checkpoint(0, "b"), warm_start)) == ["warm_start"], (
        "the best checkpoint is the warm start"
    )


def test_the_checkpoint_that_a_run_continued_from_is_no_warm_start() -> None:
    trained, start = checkpoint(6, "a", continue_from="id"), checkpoint(0, "b", continue_from="id")
    assert list(adapters_to_ask(trained, start)) == ["start", "trained"]
    assert list(adapters_to_ask(checkpoint(0, "b", continue_from="id"), start)) == ["start"]


def test_policies_that_are_only_compared_with_are_asked_fewer_questions() -> None:
    config, adapters = EvaluationConfig(start_limit=150, base_limit=20), {"warm_start": Path(), "trained": Path()}
    limits = [question_limit(config, name, adapters) for name in ("base", "warm_start", "start", "trained")]
    assert limits == [20, 150, 150, None]
    assert question_limit(config, "warm_start", {"warm_start": Path()}) is None, "it is the trained policy too"
