"""What bars say about the time."""

from __future__ import annotations

from rich.progress import Progress

from reports.console import _Pace


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
