"""Operations on files that take long: on a busy machine they are tried again, and nobody's repair is wrong."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.errors import Starved
from sandbox.inside.files import changed_files
from sandbox.inside.init import Init
from sandbox.inside.protocol import send
from sandbox.limits import Limits
from sandbox.workspace import Workspace

pytestmark = pytest.mark.service


def waits() -> dict[str, Any]:
    time.sleep(1000)
    return {}


def computes() -> dict[str, Any]:
    while True:
        pass


@pytest.mark.parametrize(
    ("operation", "busy_factor", "answer"),
    [(waits, 0.2, {"starved": True}), (computes, 300, {"error": "the file operation failed"})],
)
def test_an_operation_that_got_no_processor_has_not_failed(
    operation: Any, busy_factor: float, answer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.inside.init.FILE_SECONDS", 1)
    monkeypatch.setattr("sandbox.inside.init.BUSY_FACTOR", busy_factor)
    connection: Any = SimpleNamespace(close=lambda: None)
    init = Init(connection, Limits().model_dump(), str(tmp_path), in_container=True)
    assert init._as_user(operation) == answer


def test_the_service_says_that_it_is_too_busy() -> None:
    ours, theirs = socket.socketpair()
    workspace = Workspace(ours, Limits(), lambda: None)
    send(theirs, {"starved": True})
    with pytest.raises(Starved, match="this machine is too busy: no file operation in 40 s"):
        workspace.changes()
    workspace.close()
    theirs.close()


def test_what_test_tools_keep_is_no_change(tmp_path: Path) -> None:
    for name in (".pytest_cache/v/cache/lastfailed", ".hypothesis/examples/a", "__pycache__/a.py", "kept.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert changed_files(str(tmp_path), {}) == {"changed": {"kept.py": "x"}, "deleted": []}
