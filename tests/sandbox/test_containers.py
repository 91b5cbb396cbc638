"""Workspaces in containers, with a stand-in for the Docker daemon."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, DockerException, NotFound
from requests import Response
from requests.exceptions import ConnectionError as RequestsConnectionError

from sandbox.__main__ import main
from sandbox.checks import Check, Suite, pytest_summary, run_checks, run_suite
from sandbox.containers import ContainerRunner
from sandbox.docker_engine import DockerEngine
from sandbox.errors import NoIsolation, NotStarted, Unusable, WorkspaceLost
from sandbox.limits import Limits
from sandbox.local import LocalRunner
from sandbox.settings import SandboxSettings
from sandbox.workspace import Changes, Image
from tests.ports import free_port
from tests.sandbox.docker_daemon import FakeContainer, FakeDaemon, require_bubblewrap

pytestmark = pytest.mark.service

FILES = {"target.py": "def double(number):\n    return number + 1\n"}
TESTS = """
import sys
sys.path.insert(0, "")
from pkg.target import double
print("=== short test summary info ===")
print("PASSED r2e_tests/test_1.py::TestDouble::test_zero")
if double(4) == 8:
    print("PASSED r2e_tests/test_1.py::test_four[a - b]")
else:
    print("FAILED r2e_tests/test_1.py::test_four[a - b] - assert 5 == 8")
"""
REPOSITORY = Image(name="repository:1", folder="/testbed", hidden=("/image/r2e_tests", "/testbed/run_tests.sh"))
SETTINGS = SandboxSettings(
    runner="docker",
    image="plain:1",
    limits=Limits(wall_seconds=120, cpu_seconds=600),
    lifetime_seconds=600,
    test_seconds=600,
)


@pytest.fixture
def daemon(tmp_path: Path) -> FakeDaemon:
    require_bubblewrap()
    testbed, tests = tmp_path / "testbed", tmp_path / "image" / "r2e_tests"
    (testbed / "pkg").mkdir(parents=True)
    (testbed / "pkg" / "target.py").write_text(FILES["target.py"])
    (testbed / "pkg" / "__init__.py").write_text("")
    (testbed / ".git").mkdir()
    (testbed / ".git" / "HEAD").write_text("ref")
    (testbed / "run_tests.sh").write_text("python3 r2e_tests/test_1.py\n")
    tests.mkdir(parents=True)
    (tests / "test_1.py").write_text(TESTS)
    daemon = FakeDaemon(tmp_path)
    daemon.known[REPOSITORY.name] = {"/testbed": testbed, "/image": tests.parent}
    return daemon


@pytest.fixture
def runner(daemon: FakeDaemon) -> Iterator[ContainerRunner]:
    runner = ContainerRunner(DockerEngine("here-8100", daemon), SETTINGS)
    yield runner
    runner.close()
    assert daemon.kept == []


def test_a_workspace_in_a_container_is_confined_and_does_what_a_local_one_does(
    runner: ContainerRunner, daemon: FakeDaemon
) -> None:
    runner.require_isolation()
    workspace = runner.open(FILES)
    options = daemon.kept[0].options
    assert options["network_mode"] == "none" and options["cap_drop"] == ["ALL"] and options["stdin_open"] is True
    assert options["labels"] == {"app": "sandbox-workspace", "owner": "here-8100"}
    assert workspace.exec("import target\nnumber = 20\ntarget.double(4)").output == "5\n"
    assert workspace.exec("number").output == "20\n"
    ended = workspace.exec("import os\nos._exit(3)")
    assert ended.ended == "the REPL exited with code 3"
    assert workspace.exec("print('again')").restarted
    workspace.write_files({"target.py": "def double(number):\n    return 2 * number\n"})
    assert list(workspace.changes().changed) == ["target.py"]
    workspace.close()
    assert daemon.kept == []
    checks = [Check(code="import target\ntarget.double(4)", expected="8")]
    assert not run_checks(runner, FILES, Changes(), checks)[0].passed
    repaired = Changes(changed={"target.py": "def double(number):\n    return 2 * number\n"})
    assert run_checks(runner, FILES, repaired, checks)[0].passed


@pytest.mark.parametrize("name", ["sandbox", "protocol"])
def test_the_code_under_repair_may_have_modules_named_like_the_sandboxs(runner: ContainerRunner, name: str) -> None:
    with contextlib.closing(LocalRunner()) as local:
        for each in (runner, local):
            workspace = each.open({f"{name}.py": "mine = True\n"})
            assert workspace.exec(f"import {name}\n{name}.mine").output == "True\n"
            workspace.close()


def test_a_cell_that_kills_what_it_can_does_not_end_the_workspace(runner: ContainerRunner) -> None:
    workspace = runner.open(FILES)
    workspace.exec("import os, signal\nfor number in (1, 2, 9, 14, 15): os.kill(1, number)")
    assert workspace.exec("print('still here')").output == "still here\n"
    workspace.close()


def test_tests_of_an_image_are_hidden_from_the_agent_and_run_on_its_patch(runner: ContainerRunner) -> None:
    workspace = runner.open(image=REPOSITORY)
    listed = "os.path.exists('/image/r2e_tests'), os.path.exists('run_tests.sh'), sorted(os.listdir('.'))"
    shown = workspace.exec(f"import os\n{listed}")
    assert shown.output == "(False, False, ['.git', 'pkg'])\n"
    workspace.exec("open('run_tests.sh', 'w').write('echo forged')")
    workspace.exec("open('pkg/target.py', 'w').write('def double(number):\\n    return number * 2\\n')")
    workspace.exec("open('.git/HEAD', 'w').write('other')")
    patch = workspace.changes()
    workspace.close()
    assert sorted(patch.changed) == ["pkg/target.py", "run_tests.sh"] and patch.deleted == []
    expected = {"TestDouble.test_zero": "PASSED", "test_four[a - b]": "PASSED"}
    suite = Suite(command="ln -sfn /image/r2e_tests r2e_tests; sh run_tests.sh", expected=expected)
    assert [each.passed for each in run_suite(runner, REPOSITORY, patch, suite, seconds=600)] == [True, True]
    before = run_suite(runner, REPOSITORY, Changes(), suite, seconds=600)
    assert [(each.passed, each.found) for each in before] == [(True, "PASSED"), (False, "FAILED")]
    gone = run_suite(runner, REPOSITORY, Changes(deleted=["pkg/target.py"]), suite, seconds=600)
    assert [each.found for each in gone] == ["no such test ran"] * 2
    fewer = Suite(command=suite.command, expected={"TestDouble.test_zero": "PASSED"})
    assert [each.passed for each in run_suite(runner, REPOSITORY, patch, fewer, seconds=600)] == [True, False]


def test_only_containers_of_an_earlier_service_are_removed(daemon: FakeDaemon) -> None:
    for owner in ("here-8100", "here-8200"):
        ContainerRunner(DockerEngine(owner, daemon), SETTINGS).open(FILES)
    assert DockerEngine("here-8100", daemon).reap() == 1
    assert [each.options["labels"]["owner"] for each in daemon.kept] == ["here-8200"]
    assert DockerEngine("here-8200", daemon).reap() == 1


def test_a_container_outlives_neither_its_lifetime_nor_its_service(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.containers.GRACE", 5.0)
    hurried = SETTINGS.model_copy(
        update={"lifetime_seconds": 1.0, "test_seconds": 1.0, "limits": Limits(wall_seconds=1)}
    )
    runner = ContainerRunner(DockerEngine("here-8100", daemon), hurried)
    workspace = runner.open(FILES)
    [container] = daemon.kept
    assert container.process is not None
    assert container.process.wait(600) == 0  # 7 s: lifetime, the longest call and some grace
    with pytest.raises(WorkspaceLost):
        workspace.exec("1")
    runner.open(FILES)
    last = daemon.kept[-1]
    assert last.ours is not None and last.process is not None and last.process.stdin is not None
    last.process.stdin.close()  # what Docker does when the service's connection ends
    assert last.process.wait(600) == 0
    runner.close()


def test_an_image_that_is_not_there_or_not_usable_is_refused(runner: ContainerRunner, daemon: FakeDaemon) -> None:
    with pytest.raises(Unusable, match="image nowhere:1: manifest for nowhere:1 not found"):
        runner.open(image=Image(name="nowhere:1"))
    with pytest.raises(Unusable, match="it has no Python"):
        daemon.known["empty:1"] = {sys.base_prefix: daemon.folder / "testbed", "/usr": daemon.folder / "testbed"}
        runner.open(image=Image(name="empty:1"))
    with pytest.raises(Unusable, match="the local runner has no images"):
        LocalRunner().open(image=REPOSITORY)


def answered(status: int, kind: type[APIError] = APIError) -> APIError:
    response = Response()
    response.status_code = status
    return kind("refused", response, "no more for now")


@pytest.mark.parametrize(
    ("pulled", "error"),
    [
        (answered(429), NotStarted),
        (answered(500), NotStarted),
        ([{"status": "Pulling"}, {"error": "unexpected EOF"}], NotStarted),
        (answered(404, NotFound), Unusable),
        (answered(400), Unusable),
    ],
)
def test_only_an_image_that_is_at_fault_is_refused_for_good(
    runner: ContainerRunner, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, pulled: Any, error: type[Exception]
) -> None:
    def pull(*_: object, **__: object) -> Any:
        if isinstance(pulled, APIError):
            raise pulled
        return iter(pulled)

    monkeypatch.setattr(daemon.api, "pull", pull)
    with pytest.raises(error):
        runner.open(image=Image(name="nowhere:1"))


@pytest.mark.parametrize(("status", "error"), [(400, Unusable), (404, NotStarted), (500, NotStarted)])
def test_a_container_that_cannot_be_started_is_removed(
    runner: ContainerRunner, monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    def start(_: FakeContainer) -> None:
        raise answered(status)

    monkeypatch.setattr(FakeContainer, "start", start)
    with pytest.raises(error, match="plain:1: no more for now"):
        runner.open(FILES)


def test_a_container_that_ends_while_it_starts_is_tried_again(
    runner: ContainerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.containers._program", lambda: b"")  # its loader fails
    with pytest.raises(NotStarted, match="the container of plain:1 ended before it answered"):
        runner.open(FILES)


def test_a_daemon_that_goes_away_is_no_error_of_the_service(
    runner: ContainerRunner, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise RequestsConnectionError("connection aborted")

    monkeypatch.setattr(daemon.api, "pull", lost)
    with pytest.raises(NotStarted, match="no container of nowhere:1: connection aborted"):
        runner.open(image=Image(name="nowhere:1"))
    workspace = runner.open(FILES)
    [container] = daemon.kept
    assert container.process is not None
    container.process.kill()
    with monkeypatch.context() as patched, pytest.raises(WorkspaceLost):
        patched.setattr(container, "remove", lost)
        workspace.exec("1")
    container.remove(force=True, v=True)


def test_no_daemon_is_no_isolation() -> None:
    def ping() -> None:
        raise DockerException("connection refused")

    with pytest.raises(NoIsolation, match="no Docker daemon answers .connection refused."):
        DockerEngine("here-8100", SimpleNamespace(ping=ping))


def test_summaries_of_pytest() -> None:
    report = (
        "FAILED before the summary\n=== \x1b[36mshort test summary info\x1b[0m ===\n"
        "\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mTestA::test_b\x1b[0m\n"
        "FAILED tests/test_a.py::test_c[x - y] - assert 1 - 2 == 3\nERROR tests/test_d.py - ImportError\n"
        "SKIPPED [1] tests/test_a.py:3: later\n=== 1 failed ===\n"
    )
    assert pytest_summary(report) == {"TestA.test_b": "PASSED", "test_c[x": "FAILED", "": "ERROR"}
    assert pytest_summary("no summary") == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runner=docker"], "error: no Docker daemon answers"),
        (["runner=docker", 'limits={"wall_seconds": 5}'], "error: --set limits: input should be a valid dictionary"),
        (["runner=podman"], "error: --set runner: input should be 'local', 'docker' or 'kubernetes'"),
        (["runner=kubernetes", "pod_template=nowhere.yaml"], "error: pod_template=nowhere.yaml: "),
    ],
)
def test_a_runner_that_is_missing_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    set_to = [part for word in words for part in ("--set", word)]
    assert main(["--port", str(free_port()), *set_to]) == 2
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--port", "99999"],
            "error: argument --port: '99999' is not a port: expected 1 to 65535; `python -m sandbox --help`",
        ),
        (["--port", "any"], "error: argument --port: 'any' is not a port"),
        (["--ports", "8100"], "error: unrecognized arguments"),
    ],
)
def test_a_wrong_option_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    said = capsys.readouterr().err
    assert left.value.code == 2 and said.startswith(message) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "a" * 70], f"error: --host {'a' * 70} --port 8100: encoding with 'idna' codec failed"),
        (["--host", "999.1.1.1"], "error: --host 999.1.1.1 --port 8100: "),
        (["--fd", "999"], "error: --fd 999: Bad file descriptor"),
        (["--fd", "-1"], "error: --fd -1: negative file descriptor"),
    ],
)
def test_a_place_where_nobody_can_listen_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_a_second_service_on_a_port_leaves_the_containers_of_the_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.__main__._runner", lambda *_, **__: pytest.fail("it would remove the containers"))
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        assert main(["--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --host 127.0.0.1 --port {port}: Address already in use") and said.count("\n") == 1


def test_an_unknown_setting_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "foo=1"]) == 2
    assert capsys.readouterr().err == "error: --set foo: unknown setting; see sandbox/settings.py\n"
