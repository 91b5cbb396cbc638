"""The version in production, next to another one."""

from __future__ import annotations

from typing import Any

import pytest

from steps import model_registry
from steps.artifact_names import CHECKPOINT

pytestmark = pytest.mark.service


def test_production_is_compared_with_every_version_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Version:
        name = "r1"

        @staticmethod
        def get_artifact(name: str) -> Any:
            return type("Artifact", (), {"id": "of-r1"}) if name == CHECKPOINT else None

    monkeypatch.setattr(model_registry, "production_version", lambda _: Version)
    assert model_registry.other_in_production("r2") == "of-r1"
    assert model_registry.other_in_production("r1") is None
    monkeypatch.setattr(model_registry, "production_version", lambda _: None)
    assert model_registry.other_in_production("r2") is None
