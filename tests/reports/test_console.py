"""Progress bars with time estimates, and the console output of a training run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.progress import Progress

from reports import console
from reports.console import TrainingConsole, _Pace, counter


def test_the_pace_survives_a_changing_estimate_of_the_total() -> None:
    now = 0.0
    bars = Progress(_Pace(), get_time=lambda: now)
    task = bars.add_task("mails read", total=None)
    shown = []
    for count, total in ((0, None), (2_000, None), (6_000, 10_000), (8_000, 20_000), (8_000, 4_000)):
        bars.update(task, completed=count, total=total)
        shown.append(_Pace().render(bars.tasks[0]).plain)
        now += 2
    assert shown[0] == ""
    assert shown[1:4] == ["1,000/s", "1,500/s, 0:00:03 left", "1,333/s, 0:00:09 left"]
    assert shown[4] == "1,000/s, 0:00:00 left"


def test_a_log_gets_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(console, "say", lambda line, quiet=False: lines.append(line))
    now = 0.0
    monkeypatch.setattr(console.console, "get_time", lambda: now)
    with counter("mails read", total=4_000) as count:
        for _ in range(8):
            now += 20
            count.one()
        now += 20
        count(2_000, None)
    assert lines == ["  mails read: 3 of 4,000, 20 s each", "  mails read: 6 of 4,000, 20 s each",
                     "  mails read: 2,000 of 4,000, 11/s, 0:03:00 left"]  # fmt: skip


def row(step: int, *alerts: str, validated: float | None = None, lost: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        step=step,
        phase="grpo",
        seconds=60.0,
        reward=0.5,
        accuracy=0.75,
        turns=3.3,
        tokens_per_second=113.0,
        questions=[None] * 6,
        groups_trained=4,
        groups_replaced=2,
        rollouts_sampled=36,
        rollouts_trained=16,
        decisions={},
        distinct_call_sequences=3.25 if step > 1 else None,
        entropy=0.0312 if step > 1 else None,
        rollout_errors=lost,
        validation_errors=0,
        validation_reward=validated,
        validation_accuracy=validated,
        validation_win_rate=None,
        validation_seconds=validated and 9.0,
        alerts=[SimpleNamespace(name=name, sentence=f"{name} is high") for name in alerts],
    )


def test_a_step_that_compares_replies_names_its_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(console, "say", lambda line, quiet=False: lines.append(line))
    step = row(2)
    step.decisions = {
        "query": SimpleNamespace(groups=4, with_spread=3, right=0.55),
        "answer": SimpleNamespace(groups=2, with_spread=1, right=1.0),
    }
    TrainingConsole(10).step(step)
    assert lines[1:] == [
        "  right moves  query 55% (3 of 4 with spread), answer 100% (1 of 2 with spread)",
        "  learnt from  4 of 6 decisions with spread (2 asked in place of others), 16 of 36 replies, "
        "3.2 different call sequences per question, entropy 0.031",
    ]


def test_a_step_is_one_line_and_an_alert_one_more_when_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, bool]] = []
    monkeypatch.setattr(console, "say", lambda line, quiet=False: lines.append((line, quiet)))
    shown = TrainingConsole(10)
    for finished in (row(1), row(2, "a", "b"), row(3, "a"), row(4), row(5, "a", validated=0.9)):
        shown.step(finished)
    shown.stopped("all done")
    assert [line for line, quiet in lines if not quiet] == [
        *(f"step   {n}/10  reward  0.500  accuracy  75%  turns 3.3   113 tokens/s     60 s" for n in range(1, 6)),
        "stopped: all done",
    ]
    learnt = "  learnt from  4 of 6 questions with spread (2 asked in place of others), 16 of 36 rollouts"
    varied = "3.2 different call sequences per question, entropy 0.031"
    recorded = [line for line, quiet in lines if quiet and line.startswith("  learnt")]
    assert recorded == [learnt, *[f"{learnt}, {varied}"] * 4]
    assert [line for line, quiet in lines if quiet and not line.startswith("  learnt")] == [
        "  alert        a: a is high; b: b is high",
        "  validation   reward  0.900  accuracy  90%",
        "  alert        a: a is high",
    ]
    assert lines[4][0].startswith("  alert") and lines[5][0].startswith("step   3")


def test_losses_are_printed_in_red(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, bool]] = []
    monkeypatch.setattr(console, "say", lambda line, quiet=False, alarm=False: lines.append((line, alarm)))
    shown = TrainingConsole(10)
    shown.step(row(1, lost=3))
    shown.warning("3 rollouts failed")
    assert [line for line, alarm in lines if alarm] == [
        "  errors       3 rollouts, 0 validation questions",
        "  warning      3 rollouts failed",
    ]
