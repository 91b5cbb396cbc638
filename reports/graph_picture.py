"""A picture of a knowledge graph: a column per kind of node, and a bar behind the name of each scored one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.page import Row

_COLUMNS = (("product",), ("feature", "proof_point", "customer_story"), ("pain",), ("persona", "industry"))
_FACTS = _COLUMNS[1]
_WIDTHS = (130, 300, 150, 170)
_GAP, _ROW, _HEIGHT, _MARGIN = 90, 28, 22, 8
_MOST_LETTERS = 30
MOST_FACTS = 60
"""Facts in the picture. Of more, those whose scores moved most are shown."""


def graph_picture(
    nodes: Sequence[Row], edges: Sequence[Row], before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, Any]:
    """Return what the template draws: places, sizes and texts. Facts are sorted by their score, best first."""
    facts = sorted((n for n in nodes if n["type"] in _FACTS), key=lambda n: -abs(after[n["id"]] - before[n["id"]]))
    shown_facts = {node["id"] for node in facts[:MOST_FACTS]}
    shown = [node for node in nodes if node["type"] not in _FACTS or node["id"] in shown_facts]
    boxes: dict[str, dict[str, Any]] = {}
    rows = max(sum(node["type"] in kinds for node in shown) for kinds in _COLUMNS)
    left = _MARGIN
    for kinds, width in zip(_COLUMNS, _WIDTHS, strict=True):
        column = sorted(
            (node for node in shown if node["type"] in kinds), key=lambda n: (kinds.index(n["type"]), n["id"])
        )
        if kinds == _FACTS:
            column.sort(key=lambda node: -after[node["id"]])
        top = _MARGIN + (rows - len(column)) * _ROW / 2
        for place, node in enumerate(column):
            boxes[node["id"]] = _box(node, left, top + place * _ROW, width, before[node["id"]], after[node["id"]])
        left += width + _GAP
    return {
        "width": left - _GAP + _MARGIN,
        "height": 2 * _MARGIN + rows * _ROW,
        "box_height": _HEIGHT,
        "nodes": list(boxes.values()),
        "edges": [
            _line(boxes[e["source"]], boxes[e["target"]], after)
            for e in edges
            if {e["source"], e["target"]} <= boxes.keys()
        ],
        "left_out": len(facts) - len(shown_facts),
    }


def _box(node: Row, x: float, y: float, width: float, before: float, after: float) -> dict[str, Any]:
    scored = node["type"] in _FACTS
    return {
        "id": node["id"],
        "x": x,
        "y": y,
        "middle": y + _HEIGHT / 2,
        "width": width,
        "text": node["text"],
        "name": node["name"] if len(node["name"]) <= _MOST_LETTERS else f"{node['name'][: _MOST_LETTERS - 1]}…",
        "score": f"{after:.2f}" if scored else "",
        "bar": f"{width * after / 2:.1f}",
        "before_x": f"{x + width * before / 2:.1f}",
        "style": "" if not scored else "up" if after > before + 0.005 else "down" if after < before - 0.005 else "same",
    }


def _line(one: Row, other: Row, after: Mapping[str, float]) -> dict[str, Any]:
    """Return a curve from the right side of the left box to the left side of the right one; darker for good facts."""
    first, second = sorted((one, other), key=lambda box: (box["x"], box["y"]))
    x1 = first["x"] + first["width"]
    x2 = second["x"] if second["x"] > first["x"] else x1
    bend = (x2 - x1) / 2 if x2 > x1 else 24
    y1, y2 = first["middle"], second["middle"]
    towards = x2 - bend if x2 > x1 else x2 + bend
    best = max((after[box["id"]] for box in (one, other) if box["score"]), default=1.0)
    return {
        "d": f"M{x1:.0f},{y1:.0f}C{x1 + bend:.0f},{y1:.0f} {towards:.0f},{y2:.0f} {x2:.0f},{y2:.0f}",
        "style": "strong" if best > 1.1 else "",
    }
