"""The mail tools with their optional arguments described, which the agent's prompts leave out: long schemas for tests of formats."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from environment.tools import READ, SEARCH, tool_schemas

OPTIONAL: dict[str, dict[str, Any]] = {
    SEARCH: {
        "from_addr": {"type": "string"},
        "to_addr": {"type": "string"},
        "sent_after": {"type": "string", "description": "YYYY-MM-DD"},
        "sent_before": {"type": "string", "description": "YYYY-MM-DD"},
        "max_results": {"type": "integer"},
    },
    READ: {"start": {"type": "integer", "description": "character to read on from"}},
}


def full_schemas() -> list[dict[str, Any]]:
    """Return the tools as OpenAI tool definitions with all arguments that they accept."""
    schemas = deepcopy(tool_schemas())
    for schema in schemas:
        function = schema["function"]
        function["parameters"]["properties"] |= OPTIONAL.get(function["name"], {})
    return schemas
