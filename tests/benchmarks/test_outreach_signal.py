"""The last line of the benchmark of the learn loop's signal is JSON; counts below 1 are refused."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import outreach_signal


def test_the_last_line_is_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "outreach_signal",
        "--seeds",
        "1",
        "--iterations",
        "1",
        "--prospects",
        "1",
        "--emails",
        "2",
        "--sends",
        "5",
    ]
    monkeypatch.setattr(sys, "argv", words)
    outreach_signal.main()
    *lines, last = capsys.readouterr().out.splitlines()
    means = json.loads(last)
    assert [line.partition(":")[0] for line in lines] == list(means)
    assert f"ratio {means['policy only']['ratio']:.3f} (" in lines[1]


@pytest.mark.parametrize("name", ["seeds", "emails"])
def test_a_count_below_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["outreach_signal", f"--{name}", "0"])
    with pytest.raises(SystemExit, match="2"):
        outreach_signal.main()
    assert f"--{name} must be at least 1" in capsys.readouterr().err
