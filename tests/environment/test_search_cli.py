"""The command line for people."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from environment import search_cli
from environment.email_db import build_database
from tests.environment.sample_mails import OWNER, STRANGER, mail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mails.sqlite"
    hostile = "\x1b[2J[red]budget[/red]\u202e evil"
    build_database(
        [
            mail(1, subject="Heron", body="The budget is $31,000.\nSee you"),
            mail(2, subject=hostile, body=f"budget {hostile}", from_address="eve@example.com"),
            mail(3, to_addresses=(STRANGER,), body="Secret budget."),
        ],
        path,
    )
    return path


def run(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str, str]:
    code = search_cli.main(["--database", str(path), "--inbox", OWNER, *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_hits_are_listed_and_mails_shown(
    capsys: pytest.CaptureFixture[str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    code, out, err = run(capsys, path, "--query", "budget heron")
    assert code == 0 and not err
    assert "Heron" in out and "$31,000" in out and "2001-01-02" in out and "Secret" not in out
    code, out, _ = run(capsys, path, "--read", "1")
    assert code == 0 and "From: bob.ray@example.com\n" in out and "The budget is $31,000.\nSee you\n" in out
    assert "eve@" not in run(capsys, path, "--query", "budget", "--from-addr", "bob.ray")[1]
    assert "eve@" not in run(capsys, path, "--query", "budget", "--before", "2001-01-02")[1]
    assert "Heron" not in run(capsys, path, "--after", "2001-01-03")[1]
    assert run(capsys, path, "--query", "zeppelin")[:2] == (0, "No mails found.\n")


def test_quoted_text_is_shown_below_the_mail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "reply.sqlite"
    build_database([mail(1, body="> When is it?\nOn Friday.\n> And where?\nIn 4B.")], path)
    assert run(capsys, path, "--read", "1")[1].endswith("\n\nOn Friday.\nIn 4B.\n> When is it?\n> And where?\n\n")


def test_a_mail_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    for words in (("--query", "evil"), ("--read", "2")):
        out = run(capsys, path, *words)[1]
        assert "\x1b" not in out and "\u202e" not in out and "[red]" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "say what to look for"),
        (("--read", "3"), "there is no mail 3 in this mailbox"),
        (("--read", "99"), "there is no mail 99 in this mailbox"),
        (("--query", "x", "--before", "soon"), "is not a date"),
        (("--query", "x", "--limit", "0"), "--limit 0"),
        (("--query", "x", "--inbox", "nobody@example.com"), "unknown inbox 'nobody@example.com'"),
        (("--query", "x", "--database", "nowhere.sqlite"), "there is no mail database at nowhere.sqlite"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], path: Path, words: tuple[str, ...], problem: str
) -> None:
    code, out, err = run(capsys, path, *words)
    assert code == 2 and not out
    assert err.startswith("error: ") and problem in err and len(err.splitlines()) == 1


@pytest.mark.service
def test_the_front_door_needs_no_library_of_the_agents(path: Path) -> None:
    code = (
        "import sys; from environment import search_cli; search_cli.main(sys.argv[1:]);"
        " print({'zenml', 'torch', 'langchain_core', 'art', 'transformers'} & set(sys.modules))"
    )
    words = ["--database", str(path), "--inbox", OWNER, "--query", "heron"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "Heron" in done.stdout and done.stdout.rstrip().endswith("set()")
