"""Which run `--pipeline eval` evaluates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from zenml import save_artifact

from commands.evaluate import trained_run_of
from steps.artifact_names import CHECKPOINT, MAIL_DATABASE, SCENARIOS, WARM_START
from training.errors import BadInput

pytestmark = pytest.mark.service


def version_of(**data: str) -> Any:
    """A version whose run was deleted, so that no step has made its checkpoint. It was trained on these data."""
    left = save_artifact("a checkpoint", name="checkpoint_of_nobody")
    checkpoint = SimpleNamespace(manifest=SimpleNamespace(data=data))
    object.__setattr__(left, "load", lambda: checkpoint)
    return SimpleNamespace(name="r1", get_artifact={CHECKPOINT: left, WARM_START: SimpleNamespace(id=UUID(int=4))}.get)


def test_a_version_whose_run_was_deleted_is_evaluated_on_the_data_that_its_checkpoint_names() -> None:
    mails, questions = (save_artifact([name], name=f"{name}_of_nobody") for name in ("mails", "questions"))
    found = trained_run_of(version_of(**{MAIL_DATABASE: str(mails.id), SCENARIOS: str(questions.id)}))
    assert found is not None
    assert (found.data.database, found.data.scenarios, found.warm_start) == (mails.id, questions.id, UUID(int=4))
    with pytest.raises(BadInput, match="version r1: the data that it was trained on is not in this ZenML store"):
        trained_run_of(version_of(**{MAIL_DATABASE: str(mails.id), SCENARIOS: str(UUID(int=9))}))
