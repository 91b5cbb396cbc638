"""Output of benchmarks: progress on stderr, tables on stdout."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print a table whose first column names the rows. None is an empty cell."""
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*("" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    Console(highlight=False, width=110).print(table, "")
