"""Where the steps of each command run: nothing that a file says about it is ignored."""

from __future__ import annotations

import pytest

import run
from commands import learn_loop as loop_command
from commands import tasks as task_command

pytestmark = pytest.mark.service

IN_A_POD = "step_settings={{{}: {{step_operator: pods}}}}"


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run.main(list(words)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["--pipeline", "learn-loop"], "learn_outreach"),
        (["--pipeline", "learn-loop", "--dry-run"], "learn_outreach"),
        (["--pipeline", "train", "--set", "task=coding"], "train_agent"),
        (["--pipeline", "train"], "train_agent"),
        (["--pipeline", "train", "--dry-run"], "train_agent"),
    ],
)
def test_a_step_operator_is_missed_before_anything_runs(
    words: list[str], step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *words, "--set", IN_A_POD.format(step))
    assert f"error: step {step} wants a step operator and stack default has none" in said


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["--pipeline", "learn-loop"], "train_agent"),
        (["--pipeline", "train", "--set", "task=coding"], "train_coding_agent"),
        (["--pipeline", "train"], "learn_outreach"),
        (["--pipeline", "eval"], "create_database"),
    ],
)
def test_settings_of_a_step_that_the_command_does_not_have_are_refused(
    words: list[str], step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"error: step_settings.{step}: no step of this command; its steps are" in refusal(
        capsys, *words, "--set", IN_A_POD.format(step)
    )


@pytest.fixture
def any_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (task_command, loop_command):
        monkeypatch.setattr(command, "require_remote_stack", lambda _: None)


@pytest.mark.usefixtures("any_stack")
@pytest.mark.parametrize("url", ["null", "http://127.0.0.1:8100"])
def test_a_pod_needs_a_sandbox_that_it_can_reach(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--pipeline", "train", "--set", "task=coding", "--set", f"sandbox_url={url}"]
    said = refusal(capsys, *words, "--set", IN_A_POD.format("train_agent"))
    assert "step train_agent runs in a pod, which has no right to confine the code" in said


@pytest.mark.usefixtures("any_stack")
def test_recorded_feedback_is_on_this_machine_only(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--pipeline", "learn-loop", "--set", "feedback=recorded", "--set", "random_replies=false"]
    said = refusal(capsys, *words, "--set", IN_A_POD.format("learn_outreach"))
    assert "feedback=recorded: its events are on this machine" in said
