"""The pages in a real browser, without a network: what the scripts draw, what a click shows, and that hostile text stays text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.comparison import ComparedRun, comparison_html
from reports.evaluation import evaluation_html
from reports.training import training_html
from tests.browser import Tab, browser
from tests.chromium import BROWSER

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>bold</b>"

pytestmark = [pytest.mark.service, pytest.mark.skipif(BROWSER is None, reason="needs chromium")]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def shown(tab: Tab, page: str, folder: Path, script: str = "") -> str:
    """The document after its scripts and `script` have run, as HTML. None of them has failed."""
    file = folder / f"{len(list(folder.iterdir()))}.html"
    file.write_text(page, encoding="utf-8")
    tab.open(file.as_uri(), 1100, 800)
    tab.wait(f"document.readyState === 'complete' && location.href === '{file.as_uri()}'")
    tab.run(f"{{ {script} }}")
    assert tab.errors == []
    return tab.run("document.documentElement.outerHTML")


def visible(page: str) -> str:
    """The page without the data and code that its scripts came with."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def rollout(step: int, split: str, number: int, answer: str | None = "5 pm") -> dict:
    return {
        "split": split,
        "step": step,
        "group": 0,
        "reward": 0.5 * number,
        "metrics": {"correct": number == 1, "turns": 2, "verifiable_reward": 1.0, "ruler_reward": 0.25},
        "metadata": {
            "scenario_id": "q1",
            "question": f"When? {HOSTILE}",
            "reference": "5 pm",
            "answer": answer,
            "outcome": "answered",
        },
        "explanation": f"read it {HOSTILE}",
        "turns": [
            {"role": "user", "content": "When?"},
            {
                "role": "assistant",
                "content": '<tool_call>\n{"name": "search", "arguments": {"words": "when"}}\n</tool_call>',
            },
            {"role": "tool", "content": f"observation {split} {step} {number} {HOSTILE}"},
        ],
    }


def test_the_training_page(tab: Tab, tmp_path: Path) -> None:
    history = [
        {
            "step": step,
            "phase": "grpo",
            "reward": 0.1 * step,
            "accuracy": 0.5,
            "turns": 3.0,
            "tokens_per_rollout": 120.0,
        }
        | {"loss/kl_old_new": 0.01, "entropy": 0.03, "alerts": [], "warnings": [HOSTILE]}
        for step in range(1, 4)
    ]
    rollouts = [rollout(0, "val", 0), rollout(3, "val", 1), rollout(2, "train", 0, None), rollout(2, "train", 1)]
    page = training_html(history, "Run", subtitle=HOSTILE, rollouts=rollouts, best_step=3)
    click = "for (const cell of document.querySelectorAll('article:first-of-type .run')) cell.click();"
    after = visible(shown(tab, page, tmp_path, click))
    assert "<title>Run</title>" in after, "no script has failed, and none that the data holds has run"
    assert "<img" not in after and "<b>bold</b>" not in after
    for name in (
        "mean reward",
        "accuracy of the rollouts",
        "turns per rollout",
        "tokens per rollout",
        "KL of",
        "entropy of",
        "alerts",
    ):
        assert name in after, name
    assert after.count('class="cursor"') == 7, "the script has drawn into every chart"
    assert after.count("<article>") == 2 and "2 of 2 questions" in after
    assert after.count('class="transcript"') == 2, "warm start and best policy side by side"
    assert "warm start" in after and "after step 3 (best)" in after
    assert 'search(words: "when")' in after and "observation val 0 0" in after and "observation val 3 1" in after
    assert "verifiable 1.000, ruler 0.250" in after and "read it &lt;/script&gt;" in after


def test_the_evaluation_page_compares_policies_and_filters(tab: Tab, tmp_path: Path) -> None:
    def prediction(policy: str, correct: bool) -> dict:
        recorded = {
            "policy": policy,
            "scenario_id": "q1",
            "kind": "date",
            "question": "When?",
            "reference": "5 pm",
            "correct": correct,
        }
        turns = [{"role": "assistant", "content": f"{policy} {HOSTILE}"}]
        return recorded | {
            "answer": "5 pm",
            "outcome": "answered",
            "turns": 1,
            "seconds": 0.5,
            "source_ids": ["<m>"],
            "transcript": turns,
        }

    summary = {"n": 1, "policies": {name: {"accuracy": 0.5} for name in ("base", "warm_start", "trained")}}
    predictions = [prediction("base", False), prediction("warm_start", False), prediction("trained", True)]
    page = evaluation_html(summary, predictions)
    cells = "const cells = document.querySelectorAll('.run'); cells[1].click(); cells[2].click(); cells[0].click();"
    after = visible(shown(tab, page, tmp_path, cells))
    opened = re.findall(r'class="transcript".*?<dd>(.*?)</dd>', after, re.DOTALL)
    assert opened == ["base", "trained"], "the two opened last, in the order of the policies"
    assert "<img" not in after
    search = "const form = document.getElementById('filters'); form.elements.text.value = 'absent';"
    nothing = search + "form.dispatchEvent(new Event('input'));"
    assert "0 of 1 questions" in visible(shown(tab, page, tmp_path, nothing))

    differ = "const form = document.getElementById('filters'); form.elements.result.value = 'differ';"
    differ += "form.dispatchEvent(new Event('input'));"
    assert ">warm start and trained differ</option>" in after and "1 of 1 questions" in visible(
        shown(tab, page, tmp_path, differ)
    )
    agreed = evaluation_html(
        summary, [prediction("base", False), prediction("warm_start", True), prediction("trained", True)]
    )
    assert "0 of 1 questions" in visible(shown(tab, agreed, tmp_path, differ))


def test_the_comparison_page(tab: Tab, tmp_path: Path) -> None:
    rows = [{"step": step, "phase": "grpo", "reward": step} for step in (1, 2)]
    page = comparison_html([ComparedRun(HOSTILE, {}, rows), ComparedRun("b", {"run": "r"}, rows)])
    after = shown(tab, page, tmp_path)
    assert after.count("<figure") == 1 and after.count("<path") == 2 and "<img" not in after
