"""R2E-Gym's columns, from a folder of parquet files; an episode in its image, with a container engine made of bubblewrap."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn
from docker_daemon import FakeDaemon, require_bubblewrap
from test_coding_task import played

from sandbox.app import create_app
from sandbox.containers import ContainerRunner
from sandbox.docker_engine import DockerEngine
from sandbox.limits import Limits
from sandbox.settings import SandboxSettings
from tasks.coding.r2e_gym import is_test, repository_bugs
from tasks.coding.sandbox_client import require_sandbox
from tasks.coding.scenarios import RepositoryBug
from tasks.coding.settings import CodingSettings
from tasks.coding.task import load_scenarios, require_checked, require_demonstrable
from training.errors import BadInput

SUMMARY = pa.list_(
    pa.struct(
        {
            "ast_type_str": pa.string(),
            "end_lineno": pa.int64(),
            "file_name": pa.string(),
            "name": pa.string(),
            "start_lineno": pa.int64(),
            "type": pa.string(),
        }
    )
)
SCHEMA = pa.schema(
    {
        "repo_name": pa.string(),
        "docker_image": pa.string(),
        "commit_hash": pa.string(),
        "parsed_commit_content": pa.string(),
        "execution_result_content": pa.string(),
        "modified_files": pa.list_(pa.string()),
        "modified_entity_summaries": SUMMARY,
        "relevant_files": pa.list_(pa.string()),
        "num_non_test_files": pa.int64(),
        "num_non_test_func_methods": pa.int64(),
        "num_non_test_lines": pa.int64(),
        "prompt": pa.string(),
        "problem_statement": pa.string(),
        "expected_output_json": pa.string(),
    }
)
"""The columns of the dataset card."""

MODULE = (
    '"""Numbers."""\n\n\ndef double(number):\n    return number + 1\n\n\ndef half(number):\n    return number / 2\n'
)
TESTS = """
import sys
sys.path.insert(0, "")
from pkg.target import double, half
print("=== short test summary info ===")
for name, right in (("TestDouble::test_four", double(4) == 8), ("test_half", half(5) == 2), ("test_old", True)):
    print(("PASSED" if right else "FAILED") + f" r2e_tests/test_1.py::{name}" + ("" if right else " - assert False"))
"""
EXPECTED = {"\x1b[1mTestDouble.test_four\x1b[0m": "PASSED", "test_half": "PASSED", "test_old": "PASSED"}


def hunk(start: int, lines: list[tuple[str, str]]) -> dict[str, Any]:
    old = sum(kind in ("context", "deleted") for kind, _ in lines)
    new = sum(kind in ("context", "added") for kind, _ in lines)
    return {
        "descriptor": {
            "old_range": {"start": start, "length": old},
            "new_range": {"start": start, "length": new},
            "section": "",
        },
        "line_group": {"all_lines": [{"type": kind, "content": text} for kind, text in lines]},
    }


def change(path: str, *hunks: dict[str, Any]) -> dict[str, Any]:
    return {
        "header": {"file": {"path": path}, "misc_line": None},
        "is_binary_file": False,
        "minus_file": {"path": f"a/{path}"},
        "plus_file": {"path": f"b/{path}"},
        "hunks": list(hunks),
    }


COMMIT = {
    "file_diffs": [
        change(
            "pkg/target.py",
            hunk(
                4,
                [
                    ("context", "def double(number):"),
                    ("deleted", "    return number + 1"),
                    ("added", "    return number * 2"),
                ],
            ),
            hunk(
                9, [("deleted", "    return number / 2"), ("added", "    # whole"), ("added", "    return number // 2")]
            ),
        ),
        change("pkg/more.py", hunk(0, [("added", "MORE = 1")])),
        change("tests/test_target.py", hunk(1, [("added", "assert False")])),
        change("CHANGES.rst", hunk(1, [("added", "Repaired.")])),
    ]
}


def row(number: int, **changed: object) -> dict[str, Any]:
    commit = hashlib.sha1(str(number).encode()).hexdigest()
    return {
        "repo_name": "numbers",
        "docker_image": "repository:1",
        "commit_hash": commit,
        "parsed_commit_content": json.dumps(COMMIT),
        "execution_result_content": json.dumps({"test_file_names": ["test_1.py"], "test_file_codes": [TESTS]}),
        "modified_files": ["pkg/target.py"],
        "modified_entity_summaries": [],
        "relevant_files": ["pkg/target.py"],
        "num_non_test_files": 1,
        "num_non_test_func_methods": 2,
        "num_non_test_lines": 3,
        "prompt": "",
        "problem_statement": "[ISSUE]\ndouble(4) is 5\n[/ISSUE]",
        "expected_output_json": json.dumps(EXPECTED),
        **changed,
    }


def folder_of(place: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> str:
    place.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), place / "train-00000-of-00001.parquet")
    return str(place)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_rows_become_bugs_and_a_seed_holds_some_out(tmp_path: Path) -> None:
    useless = [
        row(100, problem_statement=None),
        row(101, expected_output_json="{}"),
        row(102, parsed_commit_content='{"file_diffs": []}'),
    ]
    source = folder_of(tmp_path / "data", [*map(row, range(20)), *useless])
    bugs = repository_bugs(source, train=10, test=5, seed=1)
    assert [bug.split for bug in bugs].count("test") == 5 and len({bug.id for bug in bugs}) == 15
    assert (
        repository_bugs(source, train=10, test=5, seed=1) == bugs != repository_bugs(source, train=10, test=5, seed=2)
    )
    fewer = repository_bugs(source, train=99, test=5, seed=1, excluded=[bugs[0].id])
    assert len(fewer) == 19 and bugs[0].id not in {bug.id for bug in fewer}
    bug = bugs[0]
    assert bug.problem == "double(4) is 5" and bug.kind == "numbers" and bug.image == "repository:1"
    assert bug.expected == {"TestDouble.test_four": "PASSED", "test_half": "PASSED", "test_old": "PASSED"}
    assert [(edit.path, edit.first, edit.last) for edit in bug.edits] == [
        ("pkg/target.py", 4, 5),
        ("pkg/target.py", 9, 9),
        ("pkg/more.py", 1, 0),
    ]
    assert "double(4) is 5" in bug.opening_messages(None)[1]["content"]
    assert all(map(is_test, ("tests/a.py", "pkg/Tests/a.py", "test_a.py", "pkg/a_test.py"))) and not is_test(
        "pkg/testing.py"
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1, expected_output_json="{")], "row 0 .numbers-356a192b7913. is malformed: JSONDecodeError"),
        ([row(1, parsed_commit_content="{}")], "row 0 .numbers-356a192b7913. is malformed: KeyError"),
        ([row(1)], "1 usable bugs, but coding_test_size=2 holds out as many or more"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"^bugs=.*: {message}"):
        repository_bugs(folder_of(tmp_path / "data", rows), train=2, test=2, seed=1)


def test_sources_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    partly = pa.schema([field for field in SCHEMA if field.name not in ("docker_image", "expected_output_json")])
    rows = [{name: value for name, value in row(1).items() if name in partly.names}]
    empty, broken = tmp_path / "empty", tmp_path / "broken.parquet"
    empty.mkdir()
    broken.write_text("no parquet")
    for source, message in (
        (
            folder_of(tmp_path / "partly", rows, partly),
            "the dataset lacks the columns docker_image, expected_output_json",
        ),
        (str(empty), "there is no .parquet file in this folder"),
        (str(tmp_path / "nowhere"), "no such folder"),
        (str(broken), "it cannot be read"),
        ("nobody/nothing", "it cannot be read"),
    ):
        with pytest.raises(BadInput, match=message) as refused:
            load_scenarios(CodingSettings(bugs=source))
        assert "\n" not in str(refused.value)
    with pytest.raises(BadInput, match="excluded_bugs: has no effect on the built-in bugs"):
        load_scenarios(CodingSettings(excluded_bugs=("a",)))
    with pytest.raises(BadInput, match="demonstrations=8: only the built-in bugs have demonstrations"):
        require_demonstrable(CodingSettings(bugs="a/b"), 8)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A sandbox service with images."""
    require_bubblewrap()
    testbed, tests = tmp_path / "testbed", tmp_path / "r2e_tests"
    (testbed / "pkg").mkdir(parents=True)
    (testbed / "pkg" / "target.py").write_text(MODULE)
    (testbed / "run_tests.sh").write_text("python3 r2e_tests/test_1.py\n")
    tests.mkdir()
    (tests / "test_1.py").write_text(TESTS)
    daemon = FakeDaemon(tmp_path)
    daemon.known["repository:1"] = {"/testbed": testbed, "/tests": tests}
    limits = Limits(wall_seconds=300, cpu_seconds=60)
    settings = SandboxSettings(runner="docker", image="plain:1", capacity=4, limits=limits)
    app = create_app(settings, ContainerRunner(DockerEngine("here", daemon), settings))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listening.close()
    assert daemon.kept == []


@pytest.fixture
def bug(tmp_path: Path) -> RepositoryBug:
    source = folder_of(tmp_path / "data", [row(1), row(2)])
    found = repository_bugs(source, train=1, test=1, seed=1)[0]
    # A mount point cannot be deleted, so that the tests of this image are one folder further down.
    return found.model_copy(
        update={
            "hidden": ("/tests/test_1.py", "/testbed/run_tests.sh"),
            "command": "ln -sfn /tests r2e_tests; sh run_tests.sh",
        }
    )


def test_an_episode_in_an_image(url: str, bug: RepositoryBug) -> None:
    import asyncio

    assert require_sandbox(url, images=True).endswith("docker")
    asyncio.run(require_checked([bug], url))
    repaired = played(url, bug.oracle_cells(), bug)
    assert repaired.correct and repaired.outcome == "finished" and len(repaired.passed) == 3
    assert sorted(repaired.patch["changed"]) == ["pkg/more.py", "pkg/target.py"]
    idle = played(url, ["bash('ls; ls /tests')", "show('pkg/target.py', 4, 5)", "finish()"], bug)
    assert idle.passed == [False, False, True] and idle.patch == {"changed": {}, "deleted": []}
    recorded = [turn["content"] for turn in idle.record if turn["role"] == "user"][1:]
    assert recorded == ["pkg", "4|def double(number):\n5|    return number + 1"]
    forged = played(
        url,
        ["open('run_tests.sh', 'w').write('echo short test summary info; echo PASSED a::test_half')", "finish()"],
        bug,
    )
    assert forged.passed == [False, False, True]


def test_the_local_runner_is_refused(tmp_path: Path) -> None:
    from steps.coding.sandbox_service import sandbox_service

    require_bubblewrap()
    with (
        pytest.raises(BadInput, match="these bugs come as container images, which the bubblewrap runner cannot open"),
        sandbox_service(None, capacity=1, images=True),
    ):
        pass
