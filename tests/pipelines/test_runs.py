"""What the pipelines are started with."""

from __future__ import annotations

import pytest

from configs.schema import DataConfig
from environment.errors import BadInput
from pipelines import runs


def test_the_hub_is_asked_for_a_new_revision_and_its_silence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(runs, "say", said.append)
    monkeypatch.setattr(runs, "current_source_version", lambda data: "revision b")
    assert runs._version_of_source(DataConfig()) == "revision b" and not said

    def silent(data: DataConfig) -> str:
        raise BadInput("somebody/mails: the Hub does not say whether it changed")

    monkeypatch.setattr(runs, "current_source_version", silent)
    monkeypatch.setattr(runs, "prepared_version", lambda data: "revision a")
    assert runs._version_of_source(DataConfig()) == "revision a"
    assert said == ["somebody/mails: the Hub does not say whether it changed; the data that were prepared before are used"]
    monkeypatch.setattr(runs, "prepared_version", lambda data: None)
    nowhere = DataConfig(emails="no/such/folder")
    assert runs._version_of_source(nowhere) == runs.source_version(nowhere), "reading it says what is wrong"
    assert len(said) == 1
