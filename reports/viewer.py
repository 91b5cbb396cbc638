"""The list of questions with what each policy or rollout did about them; assets/viewer.js fills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.page import escape


def questions_section(title: str, of: str, every_kind: str) -> str:
    """The section's frame. `of` is what a question has several of (policies, rollouts), `every_kind` the filter's first choice."""
    name = escape(of.capitalize())
    return f"""<section><h2>{escape(title)}</h2>
<form id="filters" class="filters">
<input type="search" name="text" placeholder="Search questions and answers" aria-label="Search questions and answers">
<select name="kind" aria-label="Kind"><option value="">{escape(every_kind)}</option></select>
<select name="policy" aria-label="{name}"></select>
<select name="result" aria-label="Result"><option value="">any result</option><option value="correct">correct</option>
<option value="wrong">wrong</option><option value="none">no answer</option><option value="error">error</option></select>
<output id="count"></output></form>
<div id="questions"></div><button type="button" id="more" hidden>Show more</button>
<noscript><p>The list of questions needs JavaScript.</p></noscript></section>"""


def rollouts_by_question(
    rollouts: Sequence[Mapping[str, Any]], best_step: int, first_policy: str
) -> list[dict[str, Any]]:
    """What the viewer shows of recorded rollouts: held-out questions with a policy beside another, then groups of steps."""
    questions: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rollout in sorted(rollouts, key=lambda rollout: (rollout["split"] != "val", rollout["step"])):
        told, held_out = rollout["metadata"], rollout["split"] == "val"
        id = told.get("scenario_id", rollout["group"])
        key = ("val", id) if held_out else ("train", rollout["step"], rollout["group"])
        question = questions.setdefault(
            key,
            {
                "id": str(id),
                "kind": "held-out" if held_out else f"step {rollout['step']}",
                "question": str(told.get("question", id)),
                "reference": told.get("reference"),
                "runs": {},
            },
        )
        name = _policy(rollout["step"], best_step, first_policy) if held_out else f"rollout {len(question['runs']) + 1}"
        question["runs"][name] = _run(rollout)
    return list(questions.values())


def _policy(step: int, best_step: int, first_policy: str) -> str:
    name = f"after step {step}" if step else first_policy
    return f"{name} (best)" if step == best_step else name


def _run(rollout: Mapping[str, Any]) -> dict[str, Any]:
    metrics, told = rollout["metrics"], rollout["metadata"]
    parts = {name.removesuffix("_reward"): value for name, value in metrics.items() if name.endswith("_reward")}
    return {
        "correct": bool(metrics["correct"]) if "correct" in metrics else None,
        **({"answer": told["answer"]} if "answer" in told else {}),
        "outcome": told.get("outcome"),
        "turns": metrics.get("turns", 0),
        "seconds": metrics.get("seconds"),
        "reward": f"{rollout['reward']:.3f}",
        "rewards": ", ".join(f"{name} {value:.3f}" for name, value in parts.items()) if len(parts) > 1 else None,
        "explanation": rollout["explanation"],
        "transcript": [{"role": turn["role"], "content": turn["content"]} for turn in rollout["turns"]],
    }
