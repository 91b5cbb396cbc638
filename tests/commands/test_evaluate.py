"""Arguments of the evaluation pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from commands import evaluate
from steps.artifact_names import CHECKPOINT

pytestmark = pytest.mark.service


def test_production_is_compared_with_every_version_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Version:
        name = "r1"

        @staticmethod
        def get_artifact(name: str) -> Any:
            return type("Artifact", (), {"id": "of-r1"}) if name == CHECKPOINT else None

    def trained(version: str) -> Any:
        return type("Trained", (), {"version": version})

    monkeypatch.setattr(evaluate, "production_version", lambda: Version)
    assert evaluate._other_in_production(trained("r2")) == "of-r1"
    assert evaluate._other_in_production(trained("r1")) is None
    monkeypatch.setattr(evaluate, "production_version", lambda: None)
    assert evaluate._other_in_production(trained("r2")) is None
