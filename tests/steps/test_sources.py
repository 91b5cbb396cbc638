"""When cached data counts as changed."""

from __future__ import annotations

import os
from pathlib import Path

from configs.schema import DataConfig
from steps.data.sources import source_version
from steps.project import code_of


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
    watched = code_of("environment", "steps/data")
    assert {"environment/sources/synthetic_text.toml", "environment/sources/rfc822.py", "steps/data/sources.py"} <= set(
        watched
    )
