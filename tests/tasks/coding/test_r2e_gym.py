"""R2E-Gym's columns, from a folder of parquet files; an episode in its image, with a container engine made of bubblewrap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.coding.checking import require_checked
from tasks.coding.r2e_gym import is_test, repository_bugs
from tasks.coding.sandbox_client import SandboxClient, require_sandbox
from tasks.coding.scenarios import RepositoryBug
from tasks.coding.settings import CodingSettings
from tasks.coding.task import load_scenarios, require_demonstrable
from tests.sandbox.docker_daemon import require_bubblewrap
from tests.sandbox.served import served_images
from tests.tasks.coding.r2e_rows import MODULE, SCHEMA, TESTS, change, folder_of, hunk, row
from tests.tasks.coding.test_coding_task import played
from training.errors import BadInput

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_rows_become_bugs_and_a_seed_holds_some_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr("tasks.coding.task.BUGS_SEED", 1)
    every = load_scenarios(CodingSettings(bugs=source, dataset_size=None, coding_test_size=5))
    assert len(every) == 20 and every[:15] == bugs
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


def commit_from_line(first: float) -> str:
    lines = [("deleted", "VERSION = 1"), ("added", "VERSION = 2")]
    return json.dumps({"file_diffs": [change("pkg/version.py", {**hunk(1, lines), "descriptor": _from(first)})]})


def _from(first: float) -> dict[str, Any]:
    return {"old_range": {"start": first, "length": 1}, "new_range": {"start": first, "length": 1}}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(1, expected_output_json="{")], "row 0 .numbers-356a192b7913. is malformed: JSONDecodeError"),
        ([row(1, parsed_commit_content="{}")], "row 0 .numbers-356a192b7913. is malformed: KeyError"),
        ([row(1, parsed_commit_content="[" * 100_000)], "row 0 .numbers-356a192b7913. is malformed: RecursionError"),
        ([row(1, parsed_commit_content=commit_from_line(-3))], "row 0 .* is malformed: first: Input should"),
        ([row(1, parsed_commit_content=commit_from_line(float("inf")))], ".* is malformed: OverflowError: cannot conv"),
        ([row(1, expected_output_json='{"\\ud800": "PASSED"}')], ".* is malformed: UnicodeEncodeError: "),
        ([row(1, repo_name=None)], "row 0 .None-356a192b7913. is malformed: ValueError: repo_name is empty"),
        ([row(1, commit_hash=None)], "row 0 .numbers-None. is malformed: ValueError: commit_hash is empty"),
        ([row(1)], "1 usable bugs, but coding_test_size=2 holds out as many or more"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"^bugs=.*: {message}") as refused:
        repository_bugs(folder_of(tmp_path / "data", rows), train=2, test=2, seed=1)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("column", ["repo_name", "docker_image", "commit_hash", "problem_statement"])
def test_columns_of_numbers_are_refused(column: str, tmp_path: Path) -> None:
    schema = pa.schema([pa.field(column, pa.int64()) if field.name == column else field for field in SCHEMA])
    source = folder_of(tmp_path / "data", [row(number, **{column: number}) for number in (1, 2)], schema)
    with pytest.raises(BadInput, match=f"is malformed: ValueError: {column} is no text$"):
        repository_bugs(source, train=1, test=1, seed=1)


def test_the_change_of_a_file_of_one_line_replaces_that_line(tmp_path: Path) -> None:
    commit = json.loads(commit_from_line(1))
    commit["file_diffs"][0]["hunks"][0]["descriptor"]["old_range"]["length"] = None  # "@@ -1 +1 @@"
    source = folder_of(tmp_path / "data", [row(number, parsed_commit_content=json.dumps(commit)) for number in (1, 2)])
    [edit] = repository_bugs(source, train=1, test=1, seed=1)[0].edits
    assert (edit.first, edit.last, edit.text) == (1, 1, "VERSION = 2\n")


def test_an_error_without_words_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(BadInput, match=r"it cannot be read .MemoryError: no reason given.$"):
        repository_bugs(folder_of(tmp_path / "data", [row(1)]), train=1, test=1, seed=1)


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
        ("~nobody-of-this-name/bugs", "Could not determine home directory"),
        ("a" * 300, "File name too long"),
    ):
        with pytest.raises(BadInput, match=message) as refused:
            load_scenarios(CodingSettings(bugs=source))
        assert "\n" not in str(refused.value)
    with pytest.raises(BadInput, match="excluded_bugs: has no effect on the built-in bugs"):
        load_scenarios(CodingSettings(excluded_bugs=("a",)))
    with pytest.raises(BadInput, match="dataset_size=null: there is no end of built-in bugs"):
        load_scenarios(CodingSettings(dataset_size=None))
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
    with served_images(tmp_path, {"/testbed": testbed, "/tests": tests}) as url:
        yield url


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


def test_a_repository_is_checked_once(
    url: str, bug: RepositoryBug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = tmp_path / "outputs" / "checked_bugs.txt"
    broken = bug.model_copy(update={"id": "broken", "expected": {**bug.expected, "test_other": "PASSED"}})
    with pytest.raises(BadInput, match="scenario broken: its tests fail after the repair"):
        asyncio.run(require_checked([bug, broken], url, passed=passed))
    tested: list[str] = []
    test = SandboxClient.test

    async def counting(client: SandboxClient, scenario: RepositoryBug, patch: dict[str, Any]) -> list[bool]:
        tested.append(scenario.id)
        return await test(client, scenario, patch)

    monkeypatch.setattr(SandboxClient, "test", counting)
    asyncio.run(require_checked([bug.model_copy(update={"split": "train"})], url, passed=passed))
    assert tested == []
    with pytest.raises(BadInput, match="scenario broken"):
        asyncio.run(require_checked([bug, broken], url, passed=passed))
    asyncio.run(require_checked([bug.model_copy(update={"problem": "another row"})], url, passed=passed))
    assert set(tested) == {"broken", bug.id}


def test_an_episode_in_an_image(url: str, bug: RepositoryBug) -> None:
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
    from tasks.coding.sandbox_service import sandbox_service

    require_bubblewrap()
    with (
        pytest.raises(BadInput, match="these bugs come as container images, which the bubblewrap runner cannot open"),
        sandbox_service(None, capacity=1, images=True),
    ):
        pass
