"""YAML in which every key of a mapping stands once."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    problem = f"{key.value!r} stands in lines {seen[key.value]} and {key.start_mark.line + 1}"
                    raise yaml.YAMLError(f"{problem}: keep one of them")
                seen[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """Parse YAML. Raises YAMLError, also for a key that stands twice in a mapping, and ValueError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
