from __future__ import annotations

from pathlib import Path

import pytest

from steps.project import ROOT, source_files


@pytest.mark.parametrize("room", ["agent", "environment", "materializers", "reports", "serving", "steps/data"])
def test_every_file_of_a_room_is_watched_by_the_cache(room: str) -> None:
    """A text file that a step reads and the cache key does not know is a stale result one day."""
    files = {str(file.relative_to(ROOT)) for file in (ROOT / room).rglob("*") if file.is_file()}
    compiled = {file for file in files if Path(file).suffix == ".pyc"}
    assert files - compiled == set(source_files(room))
