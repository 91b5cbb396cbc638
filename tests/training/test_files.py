"""Files are written all or nothing, and a full disk is recognised however it is reported."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from training.files import is_disk_full, sha256_of_file, write_text


def test_an_interrupted_write_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "folder" / "state.json"
    write_text(file, "first")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "replace", fails)
        write_text(file, "second")
    assert file.read_text() == "first" and list(file.parent.iterdir()) == [file]
    write_text(file, "second")
    assert file.read_text() == "second"


def test_a_full_disk_is_recognised_behind_other_errors() -> None:
    try:
        try:
            raise OSError(errno.EDQUOT, "quota")
        except OSError as error:
            raise RuntimeError("cannot save") from error
    except RuntimeError as error:
        assert is_disk_full(error)
    assert is_disk_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    assert not is_disk_full(OSError(errno.EACCES, "denied")) and not is_disk_full(None)


def test_the_checksum_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_of_file(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
