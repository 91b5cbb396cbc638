"""The built-in graph of two products with their prospects, deterministic per seed."""

from __future__ import annotations

import random
import tomllib
from functools import cache
from importlib import resources
from typing import Any, Literal

from tasks.outreach.graph import Edge, KnowledgeGraph, Node
from tasks.outreach.scenarios import Prospect, Scenario

GOAL = "a short call"
_EMPLOYEES = (20, 45, 80, 150, 300, 700, 1500, 3000)


@cache
def _words() -> dict[str, Any]:
    return tomllib.loads(resources.files("tasks.outreach").joinpath("synthetic.toml").read_text(encoding="utf-8"))


def synthetic_graph(seed: int) -> KnowledgeGraph:
    """Two products with eight facts each, and the pains, personas and industries around them."""
    words, chance = _words(), random.Random(f"graph-{seed}")
    industries = [*words["industries"]["train"], *words["industries"]["held_out"]]
    nodes = [
        *(Node(id=p["id"], type="pain", name=p["name"], text=p["text"], source="interviews") for p in words["pains"]),
        *(
            Node(id=p["id"], type="persona", name=p["name"], text=f"This is a {p['name']}.", source="interviews")
            for p in words["personas"]
        ),
        *(
            Node(id=f"i{number}", type="industry", name=name, text=f"Companies in {name}.", source="interviews")
            for number, name in enumerate(industries, start=1)
        ),
    ]
    edges = [Edge(source=p["id"], relation="feels", target=pain) for p in words["personas"] for pain in p["pains"]]
    pains = [pain["id"] for pain in words["pains"]]
    edges += [
        Edge(source=f"i{n}", relation="faces", target=chance.choice(pains)) for n in range(1, len(industries) + 1)
    ]
    facts = 0
    for product in words["products"]:
        nodes.append(
            Node(id=product["id"], type="product", name=product["name"], text=product["text"], source="website")
        )
        for kind, name, text, bounds in product["facts"]:
            facts += 1
            fact = Node(
                id=f"f{facts}",
                type=kind,
                name=name,
                text=text.format(n=chance.randint(*bounds)) if bounds else text,
                source=f"{product['name'].lower()}/{name.lower().replace(' ', '-')}",
            )
            nodes.append(fact)
            relation = {"feature": "has", "proof_point": "proven_by", "customer_story": "told_by"}[kind]
            edges.append(Edge(source=product["id"], relation=relation, target=fact.id))
            edges.append(Edge(source=fact.id, relation="eases", target=chance.choice(pains)))
            if kind == "customer_story":
                number = 1 + chance.randrange(len(words["industries"]["train"]))
                edges.append(Edge(source=fact.id, relation="works_in", target=f"i{number}"))
    return KnowledgeGraph(nodes, edges)


def synthetic_scenarios(seed: int, train: int, test: int) -> list[Scenario]:
    """`train` and `test` prospects with different names, in different industries. Products, roles and sizes take turns."""
    return [*_split(seed, "train", train), *_split(seed, "test", test)]


def _split(seed: int, split: Literal["train", "test"], count: int) -> list[Scenario]:
    words, chance = _words(), random.Random(f"prospects-{split}-{seed}")
    part = "train" if split == "train" else "held_out"
    people, industries = words["people"], words["industries"][part]
    products, personas = words["products"], words["personas"]
    scenarios = []
    for number in range(count):
        persona = personas[number // len(products) % len(personas)]
        company = chance.choice(people["company_starts"]) + chance.choice(people["company_ends"])
        prospect = Prospect(
            name=f"{people[part][number % len(people[part])]} {chance.choice(people['surnames'])}",
            role=persona["name"],
            company=company,
            industry=industries[number % len(industries)],
            employees=chance.choice(_EMPLOYEES),
        )
        seeds = (products[number % len(products)]["id"], persona["id"])
        scenarios.append(Scenario(id=f"{split}-{number + 1}", split=split, prospect=prospect, goal=GOAL, seeds=seeds))
    return scenarios
