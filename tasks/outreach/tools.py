"""The agent's four tools over the knowledge graph. For any arguments they return text and never raise."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tasks.outreach.email import Email, EmailCheck, check_email
from tasks.outreach.graph import FACT_TYPES, KnowledgeGraph, Node
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.scenarios import Scenario

CONNECTED, CONTEXT, PROPOSE, FINALIZE = "get_connected_nodes", "get_relevant_context", "propose_email", "finalize_email"


def _schema(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_NODE = {"node_id": {"type": "string"}}
_EMAIL = {
    "subject": {"type": "string"},
    "body": {"type": "string"},
    "citations": {"type": "array", "items": {"type": "string"}},
}
TOOLS = [
    _schema(CONNECTED, "Nodes next to a node, best first.", _NODE),
    _schema(CONTEXT, "The fact that a node holds, to state and cite.", _NODE),
    _schema(PROPOSE, "Check a draft.", _EMAIL),
    _schema(FINALIZE, "Send the e-mail.", _EMAIL),
]


class ToolResult(NamedTuple):
    text: str
    email: Email | None = None
    invalid: bool = False


class OutreachTools:
    """The tools of one episode. `read` holds the facts read so far, in order; `options` the facts listed last, next to the
    node `options_of`. `names` are texts that an e-mail may repeat without a fact: the goal and the start nodes' names.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        scores: NodeScores,
        scenario: Scenario,
        max_neighbours: int,
        seed: str,
        *,
        explore: bool = False,
    ) -> None:
        """Nodes with equal scores are listed in an order that follows from `seed`.

        With `explore`, nodes are listed by scores drawn from their posteriors.
        """
        self._graph = graph
        self._scores = scores
        self._scenario = scenario
        self._max_neighbours = max_neighbours
        self._seed = seed
        self._explore = explore
        self.names = [scenario.goal, *(graph.node(seed).name for seed in scenario.seeds)]
        self.read: list[Node] = []
        self.options: tuple[str, ...] = ()
        self.options_of: str | None = None

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name in (CONNECTED, CONTEXT):
            node_id = arguments.get("node_id")
            if not isinstance(node_id, str) or node_id not in self._graph:
                return ToolResult(f"There is no node {node_id!r}. Use an id that you were shown.", invalid=True)
            return self._connected(node_id) if name == CONNECTED else self._context(node_id)
        if name not in (PROPOSE, FINALIZE):
            return ToolResult(f"There is no tool {name!r}.", invalid=True)
        email = _email(arguments)
        if email is None:
            return ToolResult("Give subject and body as text and citations as a list of ids.", invalid=True)
        if name == FINALIZE:
            return ToolResult("Sent.", email=email)
        check = check_email(email, self._scenario.prospect, self.read, self.names)
        return ToolResult("; ".join(_missing(check, self._scenario)) or "Nothing is missing. Finalize it.")

    def listed(self, node_id: str) -> list[Node]:
        """Return the neighbours that `get_connected_nodes` shows, best scored first."""
        ids = [node.id for node in self._graph.neighbours(node_id)]
        order = self._scores.drawn if self._explore else self._scores.ranked
        return [self._graph.node(id) for id in order(ids, self._seed)[: self._max_neighbours]]

    def _connected(self, node_id: str) -> ToolResult:
        listed = self.listed(node_id)
        if facts := tuple(node.id for node in listed if node.type in FACT_TYPES):
            self.options, self.options_of = facts, node_id
        return ToolResult("\n".join(f"{node.id} {node.type}: {node.name}" for node in listed) or "None.")

    def _context(self, node_id: str) -> ToolResult:
        node = self._graph.node(node_id)
        if node.type not in FACT_TYPES:
            return ToolResult(f"{node.id} is a {node.type}, not a fact: {node.text}")
        if node not in self.read:
            self.read.append(node)
        return ToolResult(f"[{node.id}] {node.text} (source: {node.source})")


def _email(arguments: dict[str, Any]) -> Email | None:
    subject, body, citations = (arguments.get(key) for key in ("subject", "body", "citations"))
    if not isinstance(subject, str) or not isinstance(body, str) or not isinstance(citations, list):
        return None
    if not all(isinstance(citation, str) for citation in citations):
        return None
    return Email(subject=subject, body=body, citations=tuple(citations))


def _missing(check: EmailCheck, scenario: Scenario) -> list[str]:
    """What a draft lacks, in words for the agent."""
    found = {
        f"greet {scenario.prospect.first_name}": not check.greets or check.wrong_recipient,
        "state and cite a fact that you have read": not check.stated,
        "cite facts only that you have read": bool(check.unread_citations),
        "state every fact that you cite": bool(check.unstated_citations),
        "a sentence or the subject has no cited fact": bool(check.uncited_claims),
        "a number is in no fact": bool(check.invented_numbers),
        "end with a question": not check.asks,
        f"the length of {check.words} words is not fit": not check.has_good_length,
        "cite at most three facts": check.cites_everything,
    }
    return [words for words, wanted in found.items() if wanted]


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """Return a tool call as the policy writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
