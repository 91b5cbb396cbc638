"""The list of questions with the transcripts of each policy or rollout; assets/viewer.js fills it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from reports.page import Row, render


def questions_section(title: str, of: str, every_kind: str) -> Markup:
    """Return the frame of the section.

    `of` names the items of a question (policies, rollouts), `every_kind` the filter's first choice.
    """
    return render("questions.html.jinja", title=title, of=of.capitalize(), every_kind=every_kind)


def rollouts_by_question(rollouts: Sequence[Row], best_step: int, first_policy: str) -> list[dict[str, Any]]:
    """Return the data of the viewer: held-out questions with policies next to each other, then groups of steps."""
    questions: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rollout in sorted(rollouts, key=lambda rollout: (rollout["split"] != "val", rollout["step"])):
        metadata, held_out = rollout["metadata"], rollout["split"] == "val"
        id = metadata.get("scenario_id", rollout["group"])
        key = ("val", id) if held_out else ("train", rollout["step"], rollout["group"])
        question = questions.setdefault(
            key,
            {
                "id": str(id),
                "kind": "held-out" if held_out else f"step {rollout['step']}",
                "question": str(metadata.get("question", id)),
                "reference": metadata.get("reference"),
                "runs": {},
            },
        )
        name = _policy(rollout["step"], best_step, first_policy) if held_out else f"rollout {len(question['runs']) + 1}"
        question["runs"][name] = _run(rollout)
    return list(questions.values())


def _policy(step: int, best_step: int, first_policy: str) -> str:
    name = f"after step {step}" if step else first_policy
    return f"{name} (best)" if step == best_step else name


def _run(rollout: Row) -> dict[str, Any]:
    metrics, metadata = rollout["metrics"], rollout["metadata"]
    parts = {name.removesuffix("_reward"): value for name, value in metrics.items() if name.endswith("_reward")}
    return {
        "correct": bool(metrics["correct"]) if "correct" in metrics else None,
        **({"answer": metadata["answer"]} if "answer" in metadata else {}),
        "outcome": metadata.get("outcome"),
        "turns": metrics.get("turns", 0),
        "seconds": metrics.get("seconds"),
        "reward": f"{rollout['reward']:.3f}",
        "rewards": ", ".join(f"{name} {value:.3f}" for name, value in parts.items()) if len(parts) > 1 else None,
        "explanation": rollout["explanation"],
        "transcript": [{"role": turn["role"], "content": turn["content"]} for turn in rollout["turns"]],
    }
