"""The training page."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from reports.training import training_html

WARM = {
    "step": 0,
    "phase": "warm_start",
    "checkpoint_step": 1,
    "seconds": 72.0,
    "demonstrations": 96,
    "reward": None,
    "loss": 9.0,
}
ROWS = [
    {
        "step": i,
        "phase": "grpo",
        "checkpoint_step": i + 1,
        "seconds": 40.0 + i,
        "reward": 0.1 * i,
        "accuracy": i / 20,
        "done": True,
    }
    for i in range(1, 15)
]


def columns(text: str) -> list[str]:
    return re.findall(r'data-column="([^"]*)"', text)


def test_numeric_columns_become_charts_in_order_and_bookkeeping_does_not() -> None:
    text = training_html([WARM, *ROWS], "Run 1")
    assert columns(text) == ["reward", "accuracy", "seconds"]
    assert "14 steps" in text
    assert "96 demonstrations, 1 min 12 s" in text
    assert "0.10 → 1.40" in text
    assert text.count('class="smooth"') == 3


def test_missing_values_and_short_histories_are_drawn_as_far_as_they_go() -> None:
    text = training_html([{"step": 3, "loss": float("nan"), "kl": 0.5}, {"step": 4, "loss": 1.0, "kl": None}])
    assert columns(text) == ["loss", "kl"]
    assert text.count('class="dot"') == 2
    assert "No finished step yet" in training_html([])
    assert columns(training_html([WARM])) == ["seconds", "loss", "demonstrations"]


def test_hostile_names_and_values_stay_text() -> None:
    hostile = '</script><script>alert(1)</script>"'
    text = training_html([{"step": 1, hostile: 2.0, "phase": hostile, "note": hostile}], hostile, subtitle=hostile)
    assert text.count("<script") == 2


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.none() | st.booleans()


@given(st.lists(st.dictionaries(st.sampled_from(["reward", "loss", "kl", "seconds"]), numbers), max_size=20))
def test_any_numbers_can_be_drawn(rows: list[dict]) -> None:
    text = training_html([{"step": i, **row} for i, row in enumerate(rows)])
    for path in re.findall(r' d="([^"]*)"', text):
        assert "nan" not in path
        assert "inf" not in path
