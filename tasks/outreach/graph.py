"""The knowledge graph: typed nodes and edges in a networkx graph, read from JSON Lines or CSV.

A JSON Lines file holds one node or edge a line:

    {"id": "f1", "type": "feature", "name": "Live tracking", "text": "Live tracking shows every van.", "source": "docs/tracking"}
    {"source": "p1", "relation": "has", "target": "f1"}

A folder holds the same as `nodes.csv` and `edges.csv`, with these keys as column names.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import networkx as nx
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from training.errors import BadInput

NodeType = Literal["product", "feature", "proof_point", "customer_story", "pain", "industry", "persona"]
Relation = Literal["has", "proven_by", "told_by", "eases", "feels", "faces", "works_in", "part_of"]

FACT_TYPES: tuple[NodeType, ...] = ("feature", "proof_point", "customer_story")
"""Nodes that an e-mail may cite."""
RELATIONS: dict[Relation, tuple[tuple[NodeType, ...], tuple[NodeType, ...]]] = {
    "has": (("product",), ("feature",)),
    "proven_by": (("product", "feature"), ("proof_point",)),
    "told_by": (("product", "feature"), ("customer_story",)),
    "eases": (FACT_TYPES, ("pain",)),
    "feels": (("persona",), ("pain",)),
    "faces": (("industry",), ("pain",)),
    "works_in": (("customer_story",), ("industry",)),
    "part_of": (("product", "feature", "industry"), ("product", "feature", "industry")),
}
"""Relation -> types of its source and target. `part_of` is a hierarchy within a type, without cycles."""

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]{0,63}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]


class Node(BaseModel):
    """A node of the graph. `text` is the sentence that an e-mail may use, `source` its evidence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Identifier
    type: NodeType
    name: Text
    text: Text
    source: Text


class Edge(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    relation: Relation
    target: str


class KnowledgeGraph:
    """A consistent set of nodes and edges. Edges are followed in both directions."""

    def __init__(self, nodes: Iterable[Node], edges: Iterable[Edge]) -> None:
        """Raises `BadInput` if nodes and edges are inconsistent."""
        self._graph = nx.MultiDiGraph()
        for node in nodes:
            self._add_node(node, "graph")
        for edge in edges:
            self._add_edge(edge, "graph")

    def _add_node(self, node: Node, where: str) -> None:
        if node.id in self._graph:
            raise BadInput(f"{where}: node {node.id} exists already; every id may be used once")
        self._graph.add_node(node.id, node=node)

    def _add_edge(self, edge: Edge, where: str) -> None:
        for end in (edge.source, edge.target):
            if end not in self._graph:
                raise BadInput(
                    f"{where}: the edge names {end!r}, and there is no such node; add the node or remove the edge"
                )
        sources, targets = RELATIONS[edge.relation]
        kinds = self.node(edge.source).type, self.node(edge.target).type
        within = edge.relation == "part_of"
        if kinds[0] not in sources or kinds[1] not in targets or (within and kinds[0] != kinds[1]):
            allowed = f"{' or '.join(sources)} to {'the same type' if within else ' or '.join(targets)}"
            raise BadInput(f"{where}: {edge.relation} leads from {kinds[0]} to {kinds[1]}; allowed is {allowed}")
        if self._graph.has_edge(edge.source, edge.target, key=edge.relation):
            raise BadInput(
                f"{where}: the edge {edge.source} {edge.relation} {edge.target} exists already; remove one of the two"
            )
        self._graph.add_edge(edge.source, edge.target, key=edge.relation)
        if edge.relation == "part_of" and (cycle := self._cycle_from(edge.source)):
            raise BadInput(
                f"{where}: part_of must not form a cycle, and {' -> '.join(cycle)} is one; remove one of its edges"
            )

    def _cycle_from(self, start: str) -> list[str]:
        hierarchy = nx.DiGraph((s, t) for s, t, key in self._graph.edges(keys=True) if key == "part_of")
        try:
            cycle = nx.find_cycle(hierarchy, start)
        except nx.NetworkXNoCycle:
            return []
        return [cycle[0][0], *(target for _, target in cycle)]

    @property
    def nodes(self) -> list[Node]:
        return [entry["node"] for _, entry in self._graph.nodes(data=True)]

    @property
    def edges(self) -> list[Edge]:
        return [Edge(source=s, relation=relation, target=t) for s, t, relation in self._graph.edges(keys=True)]

    @property
    def facts(self) -> list[Node]:
        """The nodes that an e-mail may cite."""
        return [node for node in self.nodes if node.type in FACT_TYPES]

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._graph

    def node(self, node_id: str) -> Node:
        return self._graph.nodes[node_id]["node"]

    def neighbours(self, node_id: str) -> list[Node]:
        """Return the nodes that an edge connects with this one, in the order of their ids."""
        return [self.node(other) for other in sorted(nx.all_neighbors(self._graph, node_id))]

    def facts_of(self, product: str) -> list[Node]:
        """Return the facts next to a product."""
        return [node for node in self.neighbours(product) if node.type in FACT_TYPES]

    def to_lines(self) -> str:
        """Return the graph in the JSON Lines format that `read_graph` reads."""
        return "".join(f"{entry.model_dump_json()}\n" for entry in (*self.nodes, *self.edges))


def read_graph(path: Path) -> KnowledgeGraph:
    """Read a JSON Lines file, or a folder with nodes.csv and edges.csv.

    Raises:
        BadInput: a file is missing or unreadable, or a line cannot be used; the message names file and line.
    """
    entries = (
        [*_csv_rows(path / "nodes.csv", Node), *_csv_rows(path / "edges.csv", Edge)]
        if path.is_dir()
        else list(_json_rows(path))
    )
    graph = KnowledgeGraph((), ())
    edges = []
    for where, kind, values in entries:
        entry = _parsed(where, kind, values)
        if isinstance(entry, Node):
            graph._add_node(entry, where)
        else:
            edges.append((where, entry))
    for where, edge in edges:
        graph._add_edge(edge, where)
    if not graph.facts:
        raise BadInput(
            f"{path}: there is no node of type {', '.join(FACT_TYPES)}; an e-mail needs at least one fact to cite"
        )
    return graph


def _parsed(where: str, kind: type[Node] | type[Edge], values: dict[str, Any]) -> Node | Edge:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise BadInput(f"{where}: {explain(error)}") from None


def explain(error: ValidationError) -> str:
    """Say in one line what is wrong with the first field that pydantic refuses."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "line"
    given = "" if first["type"] == "missing" else f" (found {str(first['input'])[:60]!r})"
    return f"{field}: {first['msg'][0].lower()}{first['msg'][1:]}{given}"


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the object of every line of a JSON Lines file. Raises `BadInput` for a malformed line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines, which also splits at U+2028
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:  # of numbers of thousands of digits, and of as many brackets
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise BadInput(f"{where}: not JSON ({reason}); expected one object a line") from None
        if not isinstance(values, dict):
            raise BadInput(f"{where}: expected a JSON object, found {type(values).__name__}")
        yield where, values


def _json_rows(path: Path) -> Iterator[tuple[str, type[Node] | type[Edge], dict[str, Any]]]:
    for where, values in read_lines(path):
        yield where, (Edge if "relation" in values else Node), values


def _csv_rows(
    path: Path, kind: type[Node] | type[Edge]
) -> Iterator[tuple[str, type[Node] | type[Edge], dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            expected = list(kind.model_fields)
            if sorted(rows.fieldnames or []) != sorted(expected):
                raise BadInput(f"{path}, line 1: expected the columns {', '.join(expected)}")
            for row in rows:
                if None in row or None in row.values():
                    raise BadInput(f"{path}, line {rows.line_num}: expected {len(expected)} fields")
                yield f"{path}, line {rows.line_num}", kind, dict(row)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; a graph folder holds nodes.csv and edges.csv") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
