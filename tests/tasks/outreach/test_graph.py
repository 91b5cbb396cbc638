"""Graph and scenario files: what is read, and what is refused by line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tasks.outreach.graph import RELATIONS, read_graph, read_lines
from tasks.outreach.scenarios import read_scenarios
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from training.errors import BadInput

PRODUCT = {"id": "p1", "type": "product", "name": "Routewise", "text": "Plans rounds.", "source": "site"}
FACT = {"id": "f1", "type": "feature", "name": "Map", "text": "Shows every van.", "source": "site/map"}
HAS = {"source": "p1", "relation": "has", "target": "f1"}


def written(folder: Path, *entries: dict[str, str]) -> Path:
    file = folder / "graph.jsonl"
    file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return file


def test_the_synthetic_graph_survives_its_file_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    graph = synthetic_graph(3)
    (tmp_path / "graph.jsonl").write_text(graph.to_lines())
    again = read_graph(tmp_path / "graph.jsonl")
    assert again.to_lines() == graph.to_lines() == synthetic_graph(3).to_lines() != synthetic_graph(4).to_lines()
    assert len(graph.facts_of("p1")) == len(graph.facts_of("p2")) == 8


def test_a_folder_of_csv_files_is_the_same_graph(tmp_path: Path) -> None:
    graph = synthetic_graph(0)
    for name, entries in (("nodes", graph.nodes), ("edges", graph.edges)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            rows = csv.DictWriter(file, list(type(entries[0]).model_fields))
            rows.writeheader()
            rows.writerows(entry.model_dump() for entry in entries)
    assert read_graph(tmp_path).to_lines() == graph.to_lines()


def test_a_quote_that_nobody_closes_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text('id,type,name,text,source\nf1,feature,"Live tracking\n' + "a,b\n" * 50_000)
    with pytest.raises(BadInput, match="nodes.csv cannot be read: field larger than"):
        read_graph(tmp_path)


@pytest.mark.parametrize(
    ("entries", "line", "problem"),
    [
        ([PRODUCT, FACT, FACT], 3, "f1 exists already"),
        ([PRODUCT, FACT, {**HAS, "target": "f9"}], 3, "'f9', and there is no such node"),
        ([{**HAS, "target": "f9"}, PRODUCT, FACT], 1, "no such node"),
        ([PRODUCT, {**FACT, "text": "  "}], 2, "text: string should have at least 1 character"),
        ([PRODUCT, {**FACT, "type": "rumour"}], 2, "type: input should be"),
        ([PRODUCT, FACT, {**HAS, "source": "f1", "target": "p1"}], 3, "allowed is product to feature"),
        ([PRODUCT, FACT, {**HAS, "relation": "part_of", "source": "f1", "target": "f1"}], 3, "f1 -> f1"),
        ([PRODUCT, FACT, {**HAS, "relation": "part_of"}], 3, "leads from product to feature"),
        ([PRODUCT, FACT, HAS, {"source": "f1", "relation": "part_of", "target": "p1"}], 4, "to the same type"),
        ([PRODUCT, {**FACT, "id": "../f"}], 2, "id: string should match"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(
    tmp_path: Path, entries: list[dict[str, str]], line: int, problem: str
) -> None:
    with pytest.raises(BadInput, match=f"line {line}: ") as refused:
        read_graph(written(tmp_path, *entries))
    assert problem in str(refused.value)


def test_no_relations_link_two_nodes_in_both_directions() -> None:
    """Otherwise `neighbours` would list a node twice. `part_of` has no cycles."""
    pairs = {
        (s, t) for name, (sources, targets) in RELATIONS.items() if name != "part_of" for s in sources for t in targets
    }
    assert not {(target, source) for source, target in pairs} & pairs


def test_a_hierarchy_has_no_cycle(tmp_path: Path) -> None:
    nodes = [{**FACT, "id": f"f{number}"} for number in range(3)]
    edges = [{"source": f"f{a}", "relation": "part_of", "target": f"f{(a + 1) % 3}"} for a in range(3)]
    with pytest.raises(BadInput, match="line 6: part_of must not form a cycle"):
        read_graph(written(tmp_path, *nodes, *edges))


def test_synthetic_splits_share_neither_prospects_nor_industries() -> None:
    scenarios = synthetic_scenarios(0, 24, 24)
    train, test = ([s.prospect for s in scenarios if s.split == split] for split in ("train", "test"))
    assert not {p.industry for p in train} & {p.industry for p in test}
    assert not {p.first_name for p in train} & {p.first_name for p in test}
    assert scenarios == synthetic_scenarios(0, 24, 24) != synthetic_scenarios(1, 24, 24)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"seeds": ["p9"]}, "line 2: scenario train-2 starts from node 'p9', which the graph does not have"),
        ({"id": "train-1"}, "line 2: scenario train-1 exists already"),
        ({"split": "dev"}, "line 2: split: input should be"),
    ],
)
def test_a_bad_scenario_is_refused_by_its_line(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    lines = [s.model_dump(mode="json") for s in synthetic_scenarios(0, 2, 2)]
    lines[1] |= change
    with pytest.raises(BadInput) as refused:
        read_scenarios(written(tmp_path, *lines), synthetic_graph(0))
    assert problem in str(refused.value)


def test_a_shared_industry_is_refused(tmp_path: Path) -> None:
    lines = [s.model_dump(mode="json") for s in synthetic_scenarios(0, 2, 2)]
    lines[3]["prospect"]["industry"] = lines[0]["prospect"]["industry"]
    with pytest.raises(BadInput, match="is in train and in test"):
        read_scenarios(written(tmp_path, *lines), synthetic_graph(0))


def test_a_line_separator_inside_a_text_is_no_new_line(tmp_path: Path) -> None:
    file = tmp_path / "graph.jsonl"
    file.write_text('{"a": "one\u2028two"}\n{"b": 1}\n', encoding="utf-8")
    assert [line for _, line in read_lines(file)] == [{"a": "one\u2028two"}, {"b": 1}]


@pytest.mark.parametrize("line", ["{", "[" * 100_000, '{"id": ' + "1" * 5000 + "}"])
def test_a_line_that_is_no_json_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.jsonl"
    file.write_text("{}\n" + line)
    with pytest.raises(BadInput, match=r"nodes.jsonl, line 2: not JSON \(.*\); expected one object a line"):
        list(read_lines(file))
