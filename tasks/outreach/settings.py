"""Settings of an outreach run, in addition to the trainer's."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SYNTHETIC_GRAPH = "synthetic"


class LoopSettings(BaseModel):
    """Graph, prospects, feedback and node scores of a learn loop."""

    model_config = ConfigDict(frozen=True)

    graph: str = Field(
        default=SYNTHETIC_GRAPH,
        description="'synthetic', a JSON Lines file, or a folder with nodes.csv and edges.csv (docs/outreach.md)",
    )
    prospects: str | None = Field(
        default=None, description="JSON Lines file of scenarios; null: synthetic ones for the synthetic graph"
    )
    train_prospects: int = Field(default=24, ge=2, le=10_000, description="synthetic prospects to train on")
    test_prospects: int = Field(
        default=24, ge=2, le=10_000, description="synthetic prospects held out, in other industries"
    )
    graph_seed: int = Field(
        default=0, ge=0, lt=2**32, description="synthetic graph, prospects and their hidden interests"
    )

    max_neighbours: int = Field(
        default=6, ge=1, le=100, description="nodes that get_connected_nodes lists, best scored first"
    )

    feedback: Literal["simulated", "recorded"] = Field(
        default="simulated", description="replies of simulated prospects, or the events that POST /feedback recorded"
    )
    random_replies: bool = Field(
        default=False,
        description="control: simulated prospects have no interests, so that no fact is better than another",
    )
    open_weight: float = Field(
        default=0.0, ge=0, le=1, description="amount that an open rate of 1 adds to the feedback reward"
    )

    learn_nodes: bool = Field(default=True, description="update the graph's scores; false: they stay at 1.0")


class OutreachSettings(LoopSettings):
    """All that an e-mail's episode and its feedback depend on."""

    max_turns: int = Field(default=6, ge=2, le=50, description="model replies per e-mail")
