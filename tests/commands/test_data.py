"""Arguments of the data preparation pipeline."""

from __future__ import annotations

import pytest
from zenml import save_artifact

from commands import data as command
from commands.resume import _data_settings
from configs.schema import DataConfig
from environment.errors import Unreachable
from steps.artifact_names import MAIL_DATABASE
from steps.data.sources import prepared_version

pytestmark = pytest.mark.service


def test_the_hub_is_asked_for_a_new_revision_and_no_reply_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(command, "say", said.append)
    monkeypatch.setattr(command, "current_source_version", lambda data: "revision b")
    assert command.version_of_source(DataConfig()) == "revision b" and not said

    def silent(data: DataConfig) -> str:
        raise Unreachable("somebody/mails: the Hub does not say whether it changed")

    monkeypatch.setattr(command, "current_source_version", silent)
    monkeypatch.setattr(command, "prepared_version", lambda data: "revision a")
    assert command.version_of_source(DataConfig()) == "revision a"
    assert said == [
        "somebody/mails: the Hub does not say whether it changed; this run uses the data that were prepared before"
    ]
    monkeypatch.setattr(command, "prepared_version", lambda data: None)
    nowhere = DataConfig(emails="no/such/folder")
    assert command.version_of_source(nowhere) == command.source_version(nowhere), "reading it says what is wrong"
    assert len(said) == 1


def test_data_whose_run_was_deleted_have_unknown_settings() -> None:
    # What remains of an artifact whose run was deleted: no step has made it.
    left = save_artifact(["no mails"], name=MAIL_DATABASE)
    assert prepared_version(DataConfig(emails="of/nobody")) is None
    assert _data_settings(command.DataRun(database=left.id, scenarios=left.id)) == {}
