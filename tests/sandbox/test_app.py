"""The sandbox service over HTTP, with real workspaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from sandbox.app import create_app
from sandbox.errors import Starved
from sandbox.limits import Limits
from sandbox.settings import SandboxSettings
from sandbox.snapshots import SnapshotCache
from sandbox.workspace import Workspace
from tests.ports import free_port
from tests.sandbox.isolated import isolated_runner

pytestmark = pytest.mark.service

FILES = {"target.py": "def double(number):\n    return number + 1\n", "notes/read me.txt": "ä"}
IS_JSON = {"Content-Type": "application/json"}
CHECKS = [
    {"code": "import target\ntarget.double(4)", "expected": "8"},
    {"code": "target.double('x')", "expected": "'xx'"},
]


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    values = getattr(request, "param", {})
    runner = isolated_runner(Limits(wall_seconds=120, cpu_seconds=60))
    with TestClient(create_app(SandboxSettings(**values), runner)) as client:
        yield client


def snapshot(client: TestClient, files: dict[str, str] = FILES) -> str:
    return client.post("/snapshots", json={"files": files}).json()["snapshot"]


def opened(client: TestClient) -> str:
    return client.post("/workspaces", json={"snapshot": snapshot(client)}).json()["id"]


def test_a_repair_from_cell_to_verdict(client: TestClient) -> None:
    place = f"/workspaces/{opened(client)}"
    assert client.post(f"{place}/cells", json={"code": "import target\ntarget.double(4)"}).json()["output"] == "5\n"
    assert client.post(f"{place}/cells", json={"code": "number = 20\nnumber + 1"}).json()["output"] == "21\n"
    assert client.post(f"{place}/cells", json={"code": "number"}).json()["output"] == "20\n"  # the REPL persists
    assert client.get(f"{place}/files/notes/read me.txt").json() == {"content": "ä"}
    repaired = "def double(number):\n    return number * 2\n"
    assert client.put(f"{place}/files/target.py", json={"content": repaired}).status_code == 204
    patch = client.get(f"{place}/changes").json()
    assert patch == {"changed": {"target.py": repaired}, "deleted": []}
    assert client.delete(place).status_code == 204
    assert client.post(f"{place}/cells", json={"code": "1"}).status_code == 404
    body = {"snapshot": snapshot(client), "patch": patch, "checks": CHECKS}
    assert [verdict["passed"] for verdict in client.post("/tests", json=body).json()] == [True, True]
    body["patch"] = {"changed": {}, "deleted": []}
    assert client.post("/tests", json=body).json() == [
        {"passed": False, "found": "5"},
        {"passed": False, "found": "raises TypeError"},
    ]


def test_a_planted_conftest_does_not_reach_the_tests(client: TestClient) -> None:
    files = {**FILES, "tests/conftest.py": "value = 1\n"}
    patch = {
        "changed": {"tests/conftest.py": "value = 2\n", "sitecustomize.py": "value = 2\n"},
        "deleted": ["tests/conftest.py"],
    }
    checks = [
        {"code": "import tests.conftest\ntests.conftest.value", "expected": "1"},
        {"code": "import os\nos.path.exists('sitecustomize.py')", "expected": "False"},
    ]
    body = {"snapshot": snapshot(client, files), "patch": patch, "checks": checks}
    assert all(verdict["passed"] for verdict in client.post("/tests", json=body).json())


@pytest.mark.parametrize("client", [{"capacity": 1, "max_waiting": 0}], indirect=True)
def test_without_capacity_the_service_says_when_to_come_back(client: TestClient) -> None:
    id = opened(client)
    assert client.get("/health").json() == {
        "status": "ok",
        "isolation": "bubblewrap",
        "images": False,
        "capacity": 1,
        "in_use": 1,
        "waiting": 0,
    }
    refused = client.post("/workspaces", json={"snapshot": snapshot(client)})
    assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
    client.delete(f"/workspaces/{id}")
    assert client.post("/workspaces", json={"snapshot": snapshot(client)}).status_code == 201


@pytest.mark.parametrize("client", [{"capacity": 2, "max_waiting": 8, "wait_seconds": 600}], indirect=True)
def test_requests_beyond_the_capacity_wait_their_turn(client: TestClient) -> None:
    body = {"snapshot": snapshot(client), "checks": CHECKS[:1]}
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.post("/tests", json=body).status_code, range(8)))
    assert answers == [200] * 8 and client.get("/health").json()["in_use"] == 0


@pytest.mark.parametrize("client", [{"repository_bytes": 2000, "lifetime_seconds": 0.5}], indirect=True)
def test_bad_requests_are_refused_in_words(client: TestClient) -> None:
    too_large = client.post("/snapshots", json={"files": {"a.py": "x" * 3000}})
    assert too_large.status_code == 422 and "3,000 bytes; at most 2,000" in too_large.json()["detail"]
    half = client.post("/snapshots", content=json.dumps({"files": {"a.py": "\ud83d"}}), headers=IS_JSON)
    assert half.status_code == 422 and "half of a surrogate pair" in half.json()["detail"]
    assert client.post("/workspaces", json={"snapshot": "unknown"}).status_code == 404
    outside = client.post("/workspaces", json={"snapshot": snapshot(client, {"../x.py": "x"})})
    assert outside.status_code == 422 and "inside the workspace" in outside.json()["detail"]
    image = {"name": "python:3.12-slim"}
    refused = client.post("/workspaces", json={"image": image})
    assert refused.status_code == 422 and "the local runner has no images" in refused.json()["detail"]
    for body in ({}, {"snapshot": "unknown", "image": image}, {"image": {"name": "a", "folder": "x; rm -r /"}}):
        assert client.post("/workspaces", json=body).status_code == 422
    assert client.get("/health").json()["in_use"] == 0


def test_the_names_of_files_count_towards_the_memory_for_snapshots() -> None:
    cache = SnapshotCache(total_bytes=50_000, repository_bytes=1024)
    ids = [cache.add({f"{number:0500}": ""}) for number in range(200)]
    for id in ids[-100:]:
        assert cache.add(cache.get(id)) == id, "and one that comes again counts once"
    with pytest.raises(KeyError):
        cache.get(ids[-101])


def test_tests_that_got_no_processor_are_to_be_tried_again(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise Starved("this machine is too busy")

    monkeypatch.setattr("sandbox.app.run_checks", busy)
    answer = client.post("/tests", json={"snapshot": snapshot(client), "checks": CHECKS})
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
    assert answer.json() == {"detail": "this machine is too busy"}


def test_without_isolation_the_service_refuses_to_start(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no namespaces here' >&2\nexit 1\n")
    broken.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "--port", str(free_port())],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "no namespaces here" in done.stderr and done.stderr.count("\n") == 1


def test_a_workspace_that_cannot_be_closed_gives_its_place_back(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"/workspaces/{opened(client)}"
    assert client.get("/health").json()["in_use"] == 1
    close = Workspace.close

    def failing(self: Workspace) -> None:
        close(self)
        raise OSError("the engine does not answer")

    monkeypatch.setattr(Workspace, "close", failing)
    with pytest.raises(OSError):
        client.delete(place)
    monkeypatch.setattr(Workspace, "close", close)
    assert client.get("/health").json()["in_use"] == 0
