"""Patches that replace what decides about them: they never reach it, and are at worst a failed repair."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.checks import Check, run_checks
from sandbox.errors import Unusable, WorkspaceLost
from sandbox.limits import Limits
from sandbox.local import LocalRunner
from sandbox.workspace import Changes, Workspace
from tests.sandbox.isolated import isolated_runner

pytestmark = pytest.mark.service

FILES = {
    "target.py": "def double(number):\n    return number + 1\n",
    "conftest.py": "value = 1\n",
    "pkg/conftest.py": "value = 1\n",
    "tests/test_target.py": "value = 1\n",
}
REPAIRED = "def double(number):\n    return number * 2\n"
UNTOUCHED = Check(
    code="import os\nsorted(os.path.join(folder, name)[2:] for folder, _, names in os.walk('.') for name in names\n"
    "       if '__pycache__' not in folder and open(os.path.join(folder, name)).read() != 'value = 1\\n')",
    expected="['target.py']",
)
REPAIR = Check(code="import target\ntarget.double(4)", expected="8")


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = isolated_runner(Limits(wall_seconds=120, cpu_seconds=60, disk_bytes=1 << 20))
    yield runner
    runner.close()


@pytest.mark.parametrize(
    "path",
    [
        *("tests", "tests/", "./tests", "conftest.py/x.py", "conftest.py/", "pkg", "tests/test_target.py/x.py"),
        *("./sitecustomize.py", "x/../tox.ini", ".//conftest.py", "tests//x.py", "pkg/./conftest.py", "a/../tests/b"),
        *("sitecustomize/__init__.py", "src/usercustomize.py", ".pytest.ini", "sub/pytest.ini", "x/y.pth", "a.so/b"),
    ],
)
def test_what_is_protected_is_replaced_under_no_name(runner: LocalRunner, path: str) -> None:
    patch = Changes(
        changed={path: "value = 2\n", "./target.py": REPAIRED},
        deleted=["./conftest.py", "tests", "tests//test_target.py", "pkg/../pkg/conftest.py"],
    )
    assert [verdict.passed for verdict in run_checks(runner, FILES, patch, [UNTOUCHED, REPAIR])] == [True, True]


@pytest.mark.parametrize(
    "changed",
    [
        *({"target.py/x.py": "x"}, {"a": "x", "a/b": "x"}, {"../x.py": "x"}, {"/x.py": "x"}, {"a\0b": "x"}),
        *({"x" * 300: "x"}, {"d/" * 3000 + "x": "x"}, {".": "x"}, {"big.txt": "x" * (9 << 20)}),
        {f"{number}.txt": "x" * (300 << 10) for number in range(4)},
    ],
)
def test_a_patch_that_cannot_be_applied_is_a_failed_repair(runner: LocalRunner, changed: dict[str, str]) -> None:
    verdicts = run_checks(runner, FILES, Changes(changed=changed), [REPAIR, REPAIR])
    assert [verdict.passed for verdict in verdicts] == [False, False] and len(verdicts[0].found) <= 500


def test_a_repository_that_cannot_be_written_is_no_verdict(runner: LocalRunner) -> None:
    with pytest.raises(Unusable):
        run_checks(runner, {**FILES, "../x.py": ""}, Changes(), [REPAIR])


def test_a_name_that_is_no_text_is_no_part_of_a_patch(runner: LocalRunner) -> None:
    workspace = runner.open(FILES)
    assert workspace.exec("open(b'\\xff.py', 'w').write('x'); open('new.py', 'w').write('x')").ok
    assert workspace.changes() == Changes(changed={"new.py": "x"})
    workspace.exec("import os\nos.mkdir(b'\\xfe'); os.symlink(b'\\xfe', 'link'); open(b'\\xfe/file', 'w').close()")
    with pytest.raises(Unusable) as refused:
        workspace.write_files({"link/file/below.py": "x"})
    assert str(refused.value).encode()
    workspace.close()


def test_a_workspace_that_nobody_has_touched_has_no_changes(runner: LocalRunner) -> None:
    files = {"./target.py": "x = 1\n", "pkg//a.py": "x", "pkg/../b.py": "x", ".venv/lib/c.py": "x", ".git": "x"}
    workspace = runner.open(files)
    assert workspace.changes() == Changes()
    workspace.exec("import os, shutil\nos.unlink('pkg/a.py'); os.unlink('.git'); shutil.rmtree('.venv')")
    assert workspace.changes() == Changes(deleted=[".git", "pkg/a.py"])
    workspace.close()


def test_the_time_for_a_deep_path_grows_with_its_depth_not_with_the_square() -> None:
    def seconds(depth: int) -> float:
        patch = Changes(changed={"d/" * depth + "x": ""})
        taken = []
        for _ in range(3):
            began = time.process_time()
            run_checks(NoWorkspaces(), {"tests/test_a.py": ""}, patch, [REPAIR])
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(8000) < 9 * seconds(2000)


class NoWorkspaces:
    """A runner whose workspaces open without a patch only, and then are closed at once."""

    def open(self, files: dict[str, str] | None = None, image: object = None, *, seconds: float | None = None) -> Any:
        if len(files or ()) > 1:
            raise Unusable("no workspace")
        return Closed()


class Closed:
    def close(self) -> None: ...


@pytest.mark.parametrize("times", [1, 2])
def test_code_that_ends_its_workspace_each_time_has_failed(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    evaluate, lost = Workspace.evaluate, list[str]()

    def losing(self: Workspace, code: str) -> object:
        if len(lost) < times:
            lost.append(code)
            raise WorkspaceLost("the workspace is gone")
        return evaluate(self, code)

    monkeypatch.setattr(Workspace, "evaluate", losing)
    verdicts = run_checks(runner, FILES, Changes(changed={"target.py": REPAIRED}), [REPAIR])
    assert [verdict.passed for verdict in verdicts] == [times == 1]
    assert times == 1 or verdicts[0].found == "no value: the workspace is gone"
