"""The closing table as it appears in a terminal."""

from __future__ import annotations

from rich.console import Console

from reports.tables import accuracy_over_minutes, closing_table, gain

ROW = {"accuracy": 0.853, "ci95": [0.79, 0.9], "answer_rate": 1.0, "source_recall": 0.5, "turns": 3.25, "seconds": 1.5}


def render(summary: dict, width: int = 110) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(closing_table(summary))
    return capture.get()


def test_rows_come_in_order_with_their_figures() -> None:
    text = render(
        {
            "n": 200,
            "policies": {
                "base": {**ROW, "accuracy": 0.0},
                "warm_start": ROW,
                "trained": {**ROW, "seconds": {"median": 2.0, "p95": 9.0}},
            },
            "baselines": {"search_and_quote": ROW, "oracle": ROW, "do_nothing": {**ROW, "errors": 2, "n": 198}},
        }
    )
    names = ["base", "warm start", "trained", "search and quote", "oracle", "do nothing *"]
    assert sorted(names, key=text.index) == names
    assert "200 held-out questions" in text
    assert "85.3%" in text
    assert "(79.0-90.0)" in text
    assert "2.00" in text and "198" in text
    assert "counted in no column" in text


def test_it_fits_a_narrow_terminal_and_omits_missing_figures() -> None:
    widest = {**ROW, "n": 200, "accuracy": 1.0, "ci95": [0.981, 1.0]}
    assert "…" not in render({"n": 200, "policies": {"base_with_grammar": widest}}, width=80)
    assert "-" in render({"policies": {"[bold]base": {}}})
    assert "[bold]base" in render({"policies": {"[bold]base": {}}})


def test_the_gain_of_reinforcement_learning_is_said_in_points() -> None:
    test = {"n": 200, "a_only": 40, "b_only": 4, "both": 144, "p_value": 1e-8}
    rows = {"warm_start": {**ROW, "accuracy": 0.74}, "trained": {**ROW, "accuracy": 0.92}}
    said = gain({"policies": rows, "paired": {"trained_vs_warm_start": test}})
    expected = "GRPO added +18.0 points to the warm start: 74.0% to 92.0% of the 200 questions asked of both (40 gained, 4 lost, "
    assert said == f"{expected}p < 0.0001)"
    rows["trained"]["accuracy"] = 0.95  # on more questions than were asked of the warm start
    assert gain({"policies": rows, "paired": {"trained_vs_warm_start": test}}) == said
    test |= {"a_only": 2, "b_only": 4, "p_value": 0.5}
    assert "added -1.0 points" in (gain({"policies": rows, "paired": {"trained_vs_warm_start": test}}) or "")
    continued = {
        "policies": {"start": rows["warm_start"], "trained": rows["trained"]},
        "paired": {"trained_vs_start": test},
    }
    assert "GRPO added -1.0 points to the start: " in (gain(continued) or "")
    assert gain({"policies": {"trained": ROW}, "paired": {}}) is None


def test_unmeasured_figures_have_no_column() -> None:
    text = render({"n": 1, "policies": {"trained": ROW}})
    assert "pass@k" not in text and "USD" not in text
    spent = {"judge_tokens": 3000, "judge_cost": 0.0084, "prompt_tokens": 812.4}
    text = render({"n": 1, "policies": {"trained": {**ROW, **spent, "pass_at": {"1": 0.6, "4": 0.85}}}}, width=140)
    assert "1: 60% 4: 85%" in text and "3,000" in text and "0.0084" in text and "812" in text
    unlabelled = render({"n": 1, "policies": {"trained": {**ROW, "accuracy": None, "ci95": None}}})
    assert "85.3%" not in unlabelled and "None" not in unlabelled


def test_samples_that_mostly_failed_are_marked_in_red() -> None:
    row = {**ROW, "errors": 0, "comparable": True, "samples": 20, "sample_errors": 14}
    console = Console(width=140, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(closing_table({"n": 5, "policies": {"trained": row, "base": {**ROW, "pass_at": {"1": 0.6}}}}))
    text = capture.get()
    assert "trained *" in text and "\x1b[1;31m14 errors" in text and "more than 2%" in text
    assert "1: 60%" in text


def test_accuracy_over_minutes_is_in_the_order_of_time() -> None:
    rows = {
        "trained": {"accuracy": 0.92, "training_seconds": 486.0},
        "warm_start": {"accuracy": 0.73, "training_seconds": 252.0},
        "base": {"accuracy": 0.0, "training_seconds": 0.0},
        "production": {"accuracy": 0.9},
        "start": {"accuracy": 0.0, "training_seconds": 300.0, "comparable": False},
    }
    said = accuracy_over_minutes({"policies": rows})
    expected = "base 0.0% after 0.0 min, warm start 73.0% after 4.2 min, trained 92.0% after 8.1 min"
    assert said == f"accuracy over training time: {expected}"
    del rows["warm_start"], rows["base"]
    assert accuracy_over_minutes({"policies": rows}) is None


def test_a_second_verdict_has_a_column_where_there_is_one() -> None:
    assert "meaning" not in render({"n": 2, "policies": {"trained": ROW}})
    assert "91.2%" in render({"n": 2, "policies": {"trained": {**ROW, "by_meaning": 0.912}}})
