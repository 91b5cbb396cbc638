"""Comparison of runs."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from reports.comparison import ComparedRun, comparison_html, comparison_table, facts


def run(label: str, steps: int = 7, gain: float = 0.1, **config: object) -> ComparedRun:
    warm = {"step": 0, "phase": "warm_start", "seconds": 60.0, "validation_accuracy": 0.25}
    rows = [
        {
            "step": step,
            "phase": "grpo",
            "seconds": 30.0,
            "reward": gain * step,
            "accuracy": 0.5,
            "sampled_tokens": 1000,
            "validation_accuracy": {2: 0.75, 4: 0.75}.get(step),
            "alerts": [{"name": "source_spam"}] if step > 5 else [],
            "warnings": ["a rollout failed"] if step == 3 else [],
        }
        for step in range(1, steps + 1)
    ]
    experiment = {
        "run": f"r-{label}",
        "stopped": "max_steps reached",
        "config_hash": "abc",
        "config": config,
        "seeds": {"seed": 3},
    }
    return ComparedRun(label, experiment, [warm, *rows])


def test_the_table_has_the_figures_of_each_run_and_the_settings_that_differ() -> None:
    shown = dict(
        facts([run("a", learning_rate=1e-4, lora_rank=8), run("b", gain=0.2, learning_rate=2e-4, lora_rank=8)])
    )
    assert shown["reward, last 5 steps"] == ["0.500", "1.000"]
    assert shown["best validation"] == ["0.750 at step 2"] * 2
    assert shown["time"] == ["4 min 30 s"] * 2
    assert shown["learning_rate"] == ["0.0001", "0.0002"] and "lora_rank" not in shown
    assert (shown["alerts"], shown["warnings"]) == (["source_spam"] * 2, ["1", "1"])
    assert "judge's cost" not in shown and "code" not in shown
    unfinished = dict(facts([ComparedRun("c", {"run": "r"}, [])]))
    assert unfinished["stopped"] == ["unfinished"] and unfinished["steps"] == ["0"]


@pytest.mark.parametrize(
    ("first", "last", "best"),
    [
        ({"checkpoint_step": 1, "validation_accuracy": 0.5}, 0.5, "0.500 at step 5"),
        ({"checkpoint_step": 0, "validation_accuracy": 0.4}, 0.35, "0.350 at step 5"),
        ({"checkpoint_step": 0, "validation_accuracy": 0.4, "phase": "continued"}, 0.35, "0.400 at step 0"),
    ],
)
def test_the_best_validation_is_that_of_the_runs_result(first: dict[str, object], last: float, best: str) -> None:
    rows = [
        {"step": 0, "phase": "warm_start", "seconds": 1.0, "validation_reward": 0.2, **first},
        {"step": 5, "phase": "grpo", "seconds": 1.0, "validation_reward": 0.4, "checkpoint_step": 6},
    ]
    rows[1]["validation_accuracy"] = last
    assert dict(facts([ComparedRun("a", {"run": "r"}, rows)]))["best validation"] == [best]


def test_the_table_and_the_page_show_both() -> None:
    runs = [run("a", x=1), run("b", x=2)]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(comparison_table(runs))
    assert re.search(r"a +b", console.export_text())
    page = comparison_html(runs)
    assert page.count("<figure") == 4 and page.count('class="raw run1"') == 4
    assert "No finished step yet" in comparison_html([ComparedRun("c", {}, [])])


def test_hostile_names_stay_text() -> None:
    hostile = "</td><script>alert(1)</script>[red]"
    runs = [run(hostile, x=hostile), run("b", x=1)]
    assert "<script" not in comparison_html(runs)
    comparison_table(runs)
