"""When cached data counts as changed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from configs.schema import DataConfig
from environment.email_db import MailDatabase
from environment.errors import BadMail
from steps.data import sources
from steps.data.sources import company, source_version
from steps.project import ROOT, source_files


def version(emails: Path) -> str:
    return source_version(DataConfig(emails=str(emails), train_questions="someone/questions"))


def test_a_changed_source_has_another_version(tmp_path: Path) -> None:
    folder = tmp_path / "maildir" / "allen-p" / "inbox"
    folder.mkdir(parents=True)
    (folder / "1.").write_bytes(b"one")
    seen = [version(tmp_path / "maildir")]
    assert version(tmp_path / "maildir") == seen[0]

    (folder / "2.").write_bytes(b"two")
    seen.append(version(tmp_path / "maildir"))
    (folder / "2.").rename(folder / "3.")
    seen.append(version(tmp_path / "maildir"))
    (folder / "3.").write_bytes(b"three")
    seen.append(version(tmp_path / "maildir"))
    os.utime(folder / "3.", ns=(0, 0))
    seen.append(version(tmp_path / "maildir"))
    assert len(set(seen)) == 5


def test_a_changed_file_has_another_version(tmp_path: Path) -> None:
    file = tmp_path / "export.mbox"
    file.write_bytes(b"From ")
    before = version(file)
    file.write_bytes(b"From x")
    assert version(file) != before


def test_every_text_that_decides_about_data_is_watched() -> None:
    watched = source_files("environment", "steps/data")
    assert {"environment/sources/synthetic_text.toml", "environment/sources/rfc822.py", "steps/data/sources.py"} <= set(
        watched
    )


class Hub:
    """A Hub whose dataset has a revision, or which does not answer."""

    def __init__(self, revision: str | None) -> None:
        self.revision = revision

    def dataset_info(self, dataset: str, timeout: float) -> SimpleNamespace:
        if self.revision is None:
            raise ConnectionError("no route\nto the Hub")
        return SimpleNamespace(sha=self.revision)


def test_a_datasets_revision_is_part_of_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(emails="somebody/mails", train_questions="somebody/questions")
    found = []
    for revision in ("a", "a", "b"):
        monkeypatch.setattr(sources, "HfApi", lambda revision=revision: Hub(revision))
        found.append(sources.current_source_version(config))
    assert found[0] == found[1] != found[2]
    monkeypatch.setattr(sources, "HfApi", lambda: Hub(None))
    with pytest.raises(BadMail, match="somebody/mails: the Hub does not say whether it changed .no route to the Hub."):
        sources.current_source_version(config)
    with pytest.raises(BadMail, match="there is no such folder here"):
        sources.current_source_version(config)


@pytest.mark.parametrize("connected", [False, True])
def test_without_a_connection_the_hub_is_asked_twice(monkeypatch: pytest.MonkeyPatch, connected: bool) -> None:
    """Its client would ask six times. A Hub that answers that it is busy is asked again as its client does."""
    asked, waited, read = [], [], []

    def dataset_info(dataset: str, timeout: float) -> None:
        asked.append(dataset)
        if not connected:
            raise HTTPError("Name or service not known")
        answer: Any = SimpleNamespace(headers={}, request=None)
        raise HfHubHTTPError("503 Service Unavailable", response=answer)

    monkeypatch.setattr(sources, "HfApi", lambda: SimpleNamespace(dataset_info=dataset_info))
    monkeypatch.setattr(sources, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(sources, "load_scenarios", lambda *_, **__: read.append("questions"))
    mails = DataConfig(emails="no/mails")
    questions = DataConfig(emails="me.mbox", train_questions="no/questions")
    if connected:
        sources.open_mails(mails)
        sources.open_scenarios(questions, cast(MailDatabase, None))
        assert (asked, waited, read) == (["no/mails", "no/questions"], [], ["questions"])
        return
    missing = (
        "is neither a folder here nor a dataset that could be fetched .*Name or service not known.*: name a folder"
    )
    with pytest.raises(BadMail, match=f"no/mails {missing}"):
        sources.open_mails(mails)
    with pytest.raises(BadMail, match=f"no/questions {missing}"):
        sources.open_scenarios(questions, cast(MailDatabase, None))
    assert asked == ["no/mails"] * 2 + ["no/questions"] * 2 and sum(waited) <= 2 and not read


def test_sources_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "mails").mkdir()
    local = str(tmp_path / "mails")
    assert sources.local_sources(DataConfig(emails=local, train_questions="somebody/questions")) == [local]
    account = "imaps://me@imap.example.org"
    assert sources.local_sources(DataConfig(emails=account, train_questions="somebody/questions")) == [account]
    assert sources.local_sources(DataConfig()) == []


def test_the_examples_in_the_documents_are_of_the_default_company() -> None:
    [body] = re.findall(r"""-d '(\{"parameters".*\})'""", (ROOT / "README.md").read_text(encoding="utf-8"))
    asked = json.loads(body)["parameters"]
    assert asked in [
        {
            "question": scenario.question,
            "inbox_address": scenario.inbox_address,
            "query_date": f"{scenario.query_date:%Y-%m-%d}",
        }
        for scenario in company(DataConfig()).scenarios()
        if scenario.split == "test"
    ]
    searches = (ROOT / "docs" / "own_mail.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--inbox (\S+)", searches)) == {asked["inbox_address"]}
