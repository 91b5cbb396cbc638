"""The comparison of our verdicts with published ones, on an invented office."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.workbench_verdicts import main
from tests.tasks.workbench.office import write_office


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["workbench_verdicts", str(tmp_path / "office")])
    return write_office(tmp_path / "office")


def test_all_verdicts_agree(office: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["verdicts"], figures["disagreeing"], figures["arguably_wrong"]) == (8, 0, 0)
    assert figures["workspace_us"] > 0


def test_another_verdict_is_found(office: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = office / "published" / "some-model.csv"
    text = file.read_text()
    file.write_text(text.replace('"0","0"', '"1","0"', 1))
    assert file.read_text() != text and main() == 1
    said = capsys.readouterr()
    assert "\ndisagrees: some-model" in said.err and json.loads(said.out.splitlines()[-1])["disagreeing"] == 1


def test_a_text_that_python_cannot_read_is_listed(office: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = office / "published" / "some-model.csv"
    sent = str(['email.send_email.func(recipient="a@b.c", subject="Hi", body="Good\nbye")'])
    query = '"Cancel the meetings on Sunday",'
    before, _, after = file.read_text().partition(query)
    file.write_text(
        f'{before}{query}"{sent.replace(chr(34), 2 * chr(34))}"{after.removeprefix(chr(34) + "[]" + chr(34))}'
    )
    assert main() == 0
    said = capsys.readouterr().out
    assert "line break in a text" in said and json.loads(said.splitlines()[-1])["arguably_wrong"] == 1


@pytest.mark.parametrize("spoil", ["published", "emails.csv"])
def test_a_folder_that_is_not_the_benchmark(office: Path, capsys: pytest.CaptureFixture[str], spoil: str) -> None:
    (office / spoil).rename(office / "elsewhere")
    assert main() == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_runs_on_other_tasks_are_refused(office: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = office / "published" / "some-model.csv"
    file.write_text(file.read_text().replace("Delete my last email from bob", "Delete everything"))
    assert main() == 2
    assert "'Delete everything' is no task of this folder" in capsys.readouterr().err
