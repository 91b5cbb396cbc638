"""The closing table as it appears in a terminal."""

from __future__ import annotations

from rich.console import Console

from reports.tables import closing_table

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


def test_it_fits_a_narrow_terminal_and_lacks_gracefully() -> None:
    widest = {**ROW, "n": 200, "accuracy": 1.0, "ci95": [0.981, 1.0]}
    assert "…" not in render({"n": 200, "policies": {"base_with_examples": widest}}, width=80)
    assert "-" in render({"policies": {"[bold]base": {}}})
    assert "[bold]base" in render({"policies": {"[bold]base": {}}})
