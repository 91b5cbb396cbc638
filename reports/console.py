"""Terminal output of long operations: transient progress bars and permanent lines."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

console = Console(highlight=False)
_LINE_SECONDS = 60.0
_FIRST_SHARE = 0.1
"""Share that is done before the rest is estimated: the first parts of a whole wait for all that run at the same time."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def say(line: str, *, quiet: bool = False, alarm: bool = False) -> None:
    """Print a permanent line: dim if `quiet`, red if `alarm`, where the terminal supports it.

    A line may quote a mail or a model. Characters that would make a terminal act are replaced.
    """
    line = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", line)
    console.print(line, style="bold red" if alarm else "dim" if quiet else None, soft_wrap=True, markup=False)


class RunClock:
    """Time of the whole run: what has passed, of what was estimated."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._total: float | None = None
        self._warm_start = 0.0
        self._followed: float | None = None

    def begin(self, total: float, *, warm_start: float = 0.0) -> None:
        """Count from now towards `total` seconds, of which the warm start is expected to take `warm_start`."""
        self._started, self._total, self._warm_start = time.monotonic(), total, warm_start
        self._followed = None

    def warm_start_took(self, seconds: float) -> None:
        """Correct the estimate: what is left takes as much more or less time than expected as the warm start did."""
        if self._total is not None and self._warm_start:
            passed = time.monotonic() - self._started
            self._total = passed + self._left(self._total, self._warm_start, seconds, passed - seconds)
            self._warm_start, self._followed = 0.0, None

    @staticmethod
    def _left(total: float, expected: float, seconds: float, before: float) -> float:
        """Return the time after a warm start that takes `seconds`, not `expected`, and began `before` seconds after the run."""
        return max(0.0, total - expected - max(0.0, before)) * seconds / expected

    def stop(self) -> None:
        """Show nothing from now on."""
        self._total = None

    def shown(self, stage: Task | None = None) -> str:
        """Return the time so far and the estimate, as "3:05 of about 14 min"; empty without an estimate.

        While `stage` is the warm start, the estimate follows its pace.
        """
        if self._total is None:
            return ""
        passed = time.monotonic() - self._started
        expected = self._warm_start  # read once: the bars are drawn by a thread of their own
        total = self._followed if expected and self._followed else self._total
        if stage is not None and expected and stage.description.startswith("warm start on ") and _under_way(stage):
            elapsed = stage.elapsed or 0.0
            whole = elapsed * (stage.total or 0.0) / stage.completed
            left = self._left(self._total, expected, whole, passed - elapsed)
            total = self._followed = passed - elapsed + whole + left
        minutes, seconds = divmod(int(passed), 60)
        return f"{minutes}:{seconds:02d} of about {max(1, round(total / 60))} min"


def _under_way(stage: Task) -> bool:
    return stage.total is not None and bool(stage.completed) and stage.completed >= _FIRST_SHARE * stage.total


clock = RunClock()
"""The clock of the run in this process."""


class _OfRun(ProgressColumn):
    """The clock of the run."""

    def render(self, task: Task) -> Text:
        return Text(clock.shown(task), style="dim")


class _Pace(ProgressColumn):
    """Mean rate so far and the remaining time at that rate.

    rich's own columns reset the rate whenever the total changes, which an estimated total does all the time.
    """

    def render(self, task: Task) -> Text:
        if not task.completed or not task.elapsed:
            return Text("")
        rate = task.completed / task.elapsed
        shown = f"{rate:,.{0 if rate >= 10 else 1}f}/s" if rate >= 0.1 else f"{1 / rate:,.0f} s each"
        if task.total is not None and _under_way(task):
            shown += f", {timedelta(seconds=round(max(0, task.total - task.completed) / rate))} left"
        return Text(shown)


class _Bars(Progress):
    """Progress bars on a terminal. A log, where rich would print nothing until the end, gets one line per minute."""

    def __init__(self) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Pace(),
            _OfRun(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._last_line = self.get_time()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._log(task_id)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._log(task_id)

    def _log(self, task_id: TaskID) -> None:
        if not self.disable or self.get_time() < self._last_line + _LINE_SECONDS:
            return
        self._last_line = self.get_time()
        [task] = [task for task in self.tasks if task.id == task_id]
        of = f" of {task.total:,.0f}" if task.total is not None else ""
        say(f"  {task.description}: {task.completed:,.0f}{of}, {_Pace().render(task)}{_after(';', task)}")


class Counter:
    """A progress bar: `counter(count, total)` sets it, `counter.one()` advances it by one."""

    def __init__(self, bars: Progress, task: Any) -> None:
        self._bars = bars
        self._task = task

    def __call__(self, count: int, total: int | None = None, *, description: str | None = None) -> None:
        self._bars.update(self._task, completed=count, total=total, description=description)

    def one(self) -> None:
        self._bars.advance(self._task)


@contextmanager
def counter(description: str, total: int | None = None) -> Iterator[Counter]:
    """Show a progress bar during a `with` block."""
    with _Bars() as bars:
        yield Counter(bars, bars.add_task(description, total=total))


def _learnt_from(row: Any) -> str:
    """Describe the data of a step's update and how much its rollouts differed."""
    asked = f"{row.groups_trained} of {len(row.questions)} {'decisions' if row.decisions else 'questions'} with spread"
    if row.groups_replaced:
        asked += f" ({row.groups_replaced} asked in place of others)"
    parts = [asked, f"{row.rollouts_trained} of {row.rollouts_sampled} {'replies' if row.decisions else 'rollouts'}"]
    if row.distinct_call_sequences is not None:
        parts.append(f"{row.distinct_call_sequences:.1f} different call sequences per question")
    if row.entropy is not None:
        parts.append(f"entropy {row.entropy:.3f}")
    return ", ".join(parts)


def _right_moves(row: Any) -> str:
    return ", ".join(
        f"{name} {figures.right:.0%} ({figures.with_spread} of {figures.groups} with spread)"
        for name, figures in row.decisions.items()
    )


def _number(value: float | None, form: str) -> str:
    return format(value, form) if value is not None else "-"


def _after(separator: str, stage: Task | None = None) -> str:
    """Return the clock of the run after `separator`, if it runs."""
    return f"{separator} {shown}" if (shown := clock.shown(stage)) else ""


class TrainingConsole:
    """Progress of a training run: a bar per stage and one line per finished step. Implements the trainer's `Progress`.

    An alert is printed when it begins, not again while it lasts.
    """

    def __init__(self, max_steps: int) -> None:
        self._bars = _Bars()
        self._task: Any = None
        self._max_steps = max_steps
        self._alerts: set[str] = set()

    def __enter__(self) -> TrainingConsole:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def stage(self, description: str, total: int) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(description, total=total)

    def extend(self, parts: int) -> None:
        [task] = [task for task in self._bars.tasks if task.id == self._task]
        self._bars.update(self._task, total=(task.total or 0) + parts)

    def advance(self) -> None:
        self._bars.advance(self._task)

    def rollouts(self, groups: Any, *, split: str, step: int) -> None:
        """Print nothing: the report shows a sample of the rollouts."""

    def step(self, row: Any) -> None:
        if row.phase == "warm_start":
            clock.warm_start_took(row.seconds - (row.validation_seconds or 0.0))
            say(f"warm start on {row.demonstrations} demonstrations  {row.seconds:5.0f} s{_after(' ')}")
        elif row.phase == "grpo":
            say(
                f"step {row.step:3d}/{self._max_steps}  reward {_number(row.reward, '6.3f')}  "
                f"accuracy {_number(row.accuracy, '4.0%')}  turns {_number(row.turns, '3.1f')}  "
                f"{_number(row.tokens_per_second, '4.0f')} tokens/s  {row.seconds:5.0f} s{_after(' ')}"
            )
            if row.decisions:
                say(f"  right moves  {_right_moves(row)}", quiet=True)
            say(f"  learnt from  {_learnt_from(row)}", quiet=True)
        if row.validation_seconds is not None:
            figures = (
                f"reward {_number(row.validation_reward, '6.3f')}  accuracy {_number(row.validation_accuracy, '4.0%')}"
            )
            if row.validation_win_rate is not None:
                figures += f"  wins against the start {row.validation_win_rate:4.0%}"
            say(f"  validation   {figures}", quiet=True)
        if row.validation_errors or row.rollout_errors:
            say(
                f"  errors       {row.rollout_errors} rollouts, {row.validation_errors} validation questions",
                alarm=True,
            )
        if begun := [alert for alert in row.alerts if alert.name not in self._alerts]:
            say("  alert        " + "; ".join(f"{alert.name}: {alert.sentence}" for alert in begun), quiet=True)
        self._alerts = {alert.name for alert in row.alerts}

    def note(self, sentence: str) -> None:
        say(f"  {sentence}", quiet=True)

    def warning(self, sentence: str) -> None:
        say(f"  warning      {sentence}", alarm=True)

    def stopped(self, reason: str, best: str = "") -> None:
        say(f"stopped: {'; '.join(filter(None, (reason, best)))}")
