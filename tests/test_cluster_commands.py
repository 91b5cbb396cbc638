"""The front door to a cluster: exit codes, one line for each mistake, and what a dry run leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from zenml.client import Client
from zenml.enums import StackComponentType

import run
from cluster.preflight import StackCheck
from commands import stack as command

pytestmark = pytest.mark.service

CONFIG = str(Path(__file__).parents[1] / "configs" / "stack_k8s.yaml")
STACK = ["--pipeline", "stack", "--config", CONFIG, "--set", "stack_name=commanded"]
FINE = StackCheck("storage", True, "s3://bucket can be written and read from here")
NO_GPU = StackCheck("GPU nodes", False, "none of 2 nodes offers 1 nvidia.com/gpu", "add a GPU node")


@pytest.fixture(autouse=True)
def as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings for other libraries are the process's, and this process has other tests to run."""
    monkeypatch.setattr(run, "quiet_third_parties", lambda: None)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StackCheck]]:
    """What the checks find."""
    checks = [FINE]
    monkeypatch.setattr(command, "check_stack", lambda settings: iter(checks))
    yield checks
    client = Client()
    for stack in client.list_stacks(name="commanded").items:
        client.delete_stack(stack.id)
    for kind in StackComponentType:
        for component in client.list_stack_components(type=kind, name="startswith:commanded").items:
            client.delete_stack_component(component.id, kind)


def registered() -> bool:
    client = Client()
    components = client.list_stack_components(name="startswith:commanded").total
    return bool(client.list_stacks(name="commanded").total or components)


def test_a_stack_is_registered_once_and_then_kept(found: list[StackCheck], capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(STACK) == 0
    first = capsys.readouterr().out
    assert str(FINE) in first and "create  stack commanded" in first and "zenml stack set commanded" in first
    assert run.main(STACK) == 0
    assert "keep    stack commanded" in capsys.readouterr().out and registered()


def test_a_dry_run_registers_nothing(found: list[StackCheck], capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([*STACK, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "create  step operator commanded-gpu" in out and "nothing was changed" in out and not registered()


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_missing_requirement_is_one_line(
    found: list[StackCheck], capsys: pytest.CaptureFixture[str], dry_run: bool
) -> None:
    found += [NO_GPU, StackCheck("registry", False, "x does not answer", "check container_registry")]
    assert run.main([*STACK, "--dry-run"] if dry_run else STACK) == 2
    out, error = capsys.readouterr()
    assert "GPU nodes        missing  none of 2 nodes" in out and "registry         missing" in out
    assert ("create  stack commanded" in out) is dry_run and not registered()
    assert len(error.splitlines()) == 1 and "add a GPU node (and 1 more above)" in error


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--pipeline", "stack"], "kubernetes_context, artifact_store, container_registry: needed"),
        ([*STACK, "--set", "artifact_store=/data"], "s3://BUCKET/PATH"),
        (["--pipeline", "train", "--schedule", "0 2 * *"], "five fields"),
        (["--pipeline", "train", "--schedule", ""], "five fields"),
        (["--pipeline", "train", "--schedule", "@daily"], "cannot run schedules"),
        (["--pipeline", "train", "--config", CONFIG.replace("stack", "training")], "wants a step operator"),
        (["--schedule-pause", "absent"], "there is no schedule absent"),
        (["--schedule-resume", "absent"], "there is no schedule absent"),
        (["--schedule-delete", "absent"], "there is no schedule absent"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and named in error


def test_no_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--schedule-list"]) == 0
    assert "no schedules" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--pipeline"),
        (["--pipeline", "data", "--schedule-list"], "not allowed with argument --pipeline"),
        (["--schedule-pause"], "--schedule-pause: expected one argument"),
    ],
)
def test_either_a_pipeline_or_a_schedule(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run.main(words)
    [line] = capsys.readouterr().err.splitlines()
    assert left.value.code == 2 and line.startswith("error: ") and named in line
