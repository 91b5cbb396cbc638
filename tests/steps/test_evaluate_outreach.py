"""The evaluation of a learn loop, with a scripted model in the place of its policies."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.schema import LearnLoopConfig
from steps.learn_loop import evaluate_outreach as module
from steps.learn_loop.world import world_of
from tasks.outreach.node_scores import NodeScores
from tests.fakes.outreach_model import OutreachModel


@pytest.mark.parametrize(("warm_start", "asked"), [(0, ["warm_start", "trained"]), (3, ["base", "trained"])])
def test_held_out_emails_are_sampled_as_in_training_and_those_of_iteration_0_before_it(
    monkeypatch: pytest.MonkeyPatch, warm_start: int, asked: list[str]
) -> None:
    """A run without demonstrations has no adapter of step 0."""
    config = LearnLoopConfig(train_prospects=2, test_prospects=2, temperature=1.5, top_p=0.9, min_p=0.1, max_tokens=64)
    graph, scenarios = world_of(config)
    scores = NodeScores.fresh(graph)
    checkpoint, before = (
        SimpleNamespace(path=Path("adapter"), manifest=SimpleNamespace(config={}, step=step))
        for step in (3, warm_start)
    )
    monkeypatch.setattr(module, "base_model_files", lambda *_, **__: SimpleNamespace(path=Path("base")))
    with OutreachModel() as model:
        server = SimpleNamespace(base_url=model.url)
        adapters: dict[str, Path] = {}
        monkeypatch.setattr(
            module, "open_policy_server", lambda base, given, config: adapters.update(given) or nullcontext(server)
        )
        module.evaluate_outreach.entrypoint(
            config,
            "run",
            base={"source": "base", "checksum": ""},
            graph=graph.to_lines(),
            scenarios=scenarios,
            checkpoint=checkpoint,
            warm_start=before,
            iterations=[],
            node_scores={"posterior": scores.model_dump(), "after": scores.scores, "top_half": scores.scores},
            emails={"before": 0, "after": 0, "baseline": [], "final": []},
        )
    sampling = ("temperature", "top_p", "min_p", "max_tokens")
    assert {tuple(sent[name] for name in sampling) for sent in model.requests} == {(1.5, 0.9, 0.1, 64)}
    assert list(dict.fromkeys(sent["model"] for sent in model.requests)) == asked
    assert set(adapters) == set(asked) - {"base"}
