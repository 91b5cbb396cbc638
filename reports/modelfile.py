"""Ollama's Modelfile for an exported model."""

from __future__ import annotations

from collections.abc import Callable

_PROBES = {"user": "\ue000", "assistant": "\ue001", "tool": "\ue002"}
"""Private characters, which no chat template has."""


def modelfile(
    render: Callable[[list[dict[str, str]]], str], weights: str, end_of_turn: str, *, max_tokens: int, max_context: int
) -> str:
    """Return the Modelfile of the GGUF file `weights`.

    `render` writes the system prompt with its tools, the given messages and the beginning of a reply, as in training.
    Ollama's templates are not Jinja, so the system message has what the policy's template makes of prompt and tools.

    Raises:
        ValueError: The chat template writes no turns that a Modelfile can describe.
    """
    end = f"{end_of_turn}\n"
    opening, _, reply = render([]).rpartition(end)
    text = render([{"role": role, "content": probe} for role, probe in _PROBES.items()])
    turns: dict[str, tuple[str, str]] = {}
    rest = text.removeprefix(opening + end)
    for role, probe in _PROBES.items():
        before, found, rest = rest.partition(probe)
        after, ended, rest = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"no turn of the role {role} that ends with {end_of_turn}")
        turns[role] = (before, after + ended)
    system_begins = turns["user"][0].replace("user", "system")
    if rest != reply or not opening.startswith(system_begins):
        raise ValueError("turns depend on those around them")
    turns = {"system": (system_begins, end), **turns}
    cases = " else ".join(
        f'if eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{after}{{{{' for role, (before, after) in turns.items()
    )
    system = opening.removeprefix(system_begins)
    if '"""' in system:
        raise ValueError("the system prompt has three quotation marks in a row")
    return f'''# Replies are text, with tool calls in the form of the system message. Send a reply back as it came, and the result of
# its tool as a message of the role `tool`. A request has no `tools` of its own.
FROM ./{weights}
TEMPLATE """{{{{ range .Messages }}}}{{{{ {cases} end }}}}{{{{ end }}}}{reply}"""
SYSTEM """{system}"""
PARAMETER temperature 0
PARAMETER num_predict {max_tokens}
PARAMETER num_ctx {max_context}
PARAMETER stop {end_of_turn}
'''
