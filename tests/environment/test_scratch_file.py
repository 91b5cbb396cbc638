"""Files that are being written: who may read them, and what a killed process leaves behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from environment.email_db import build_database
from environment.scratch_file import ScratchFile
from tests.environment.sample_mails import mail

KILLED = """
import os, signal, sys
from pathlib import Path
from environment.scratch_file import ScratchFile
scratch = ScratchFile(Path(sys.argv[1]), ".mails.sqlite.partial")
scratch.path.write_bytes(b"x" * 1_000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_of_another_build_stays_and_that_of_a_killed_process_goes(tmp_path: Path) -> None:
    path = tmp_path / "mails.sqlite"
    other = ScratchFile(tmp_path, ".mails.sqlite.partial")
    other.path.touch()
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path.cwd())
    assert len([*tmp_path.glob(".mails.sqlite.partial-*")]) == 4, "two files with their locks"
    build_database([mail(1)], path)
    assert {*tmp_path.iterdir()} == {path, other.path, Path(f"{other.path}.lock")}
    other.remove()
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_goes_with_its_last_reference(tmp_path: Path) -> None:
    scratch = ScratchFile(tmp_path / "new", "a")
    scratch.path.touch()
    assert ScratchFile(tmp_path / "new", "a").path != scratch.path and scratch.path.is_file()
    del scratch
    assert not [*(tmp_path / "new").iterdir()]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_says_who_may_read_a_database(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        build_database([mail(1)], tmp_path / "mails.sqlite")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "mails.sqlite").stat().st_mode) == 0o644 & ~umask
