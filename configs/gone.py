"""Settings of earlier versions: an error says what to do instead, and runs that recorded them can still be loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

GONE = {
    "trainer.stall_seconds": "leave it out, because a warning after five minutes suits every run",
    "trainer.step_timeout": "leave it out; a rollout fails after five minutes without progress of the policy's server",
    "trainer.health.memory_share": "leave it out, because the warning at 90% of the memory changes nothing in the run",
    "trainer.health.gpu_share": "leave it out, because the warning at 98% of the GPU memory changes nothing in the run",
    "trainer.health.free_share": "leave it out, because the warning at 5% of free memory changes nothing in the run",
    "trainer.health.stale_seconds": "leave it out, because no checkpoint takes an hour to write",
    "trainer.health.server_seconds": "leave it out, because the warning after 10 s changes nothing in the run",
    "trainer.alert_share": "name the alert in evaluation.accepted_alerts if the gate rejects a version because of it",
    "trainer.warm_start_epochs": "set trainer.demonstrations higher",
    "trainer.warm_start_batch_size": "set trainer.warm_start_learning_rate",
    "trainer.episode_share": "set trainer.decisions=[] to learn from whole episodes",
    "trainer.ruler_attempts": "leave it out; a request is sent up to six times",
    "trainer.ruler_backoff": "leave it out; the pauses between requests grow from 2 s",
    "trainer.ruler_timeout": "leave it out; a request may take ten minutes",
    "questions.question_attempts": "leave it out; a request is sent up to six times",
    "questions.question_backoff": "leave it out; the pauses between requests grow from 2 s",
    "questions.question_timeout": "leave it out; a request may take ten minutes",
    "questions.question_concurrency": "leave it out; four batches are asked about at the same time",
    "questions.mails_per_batch": "set questions.questions_per_inbox; a batch has ten mails",
    "questions.questions_per_batch": "set questions.questions_per_inbox; a batch is asked for four questions",
    "questions.question_min_realism": "set data.min_realism, which leaves questions out when they are loaded",
    "questions.max_questions": "set questions.questions_per_inbox, or limit the cost with questions.max_cost",
    "questions.largest_inboxes": "name the inboxes in questions.question_inboxes",
    "evaluation.eval_temperature": "leave it out; evaluation.eval_samples are sampled at temperature 1",
    "evaluation.base_examples": "set evaluation.base_grammar, which also shows a base that cannot call tools at its best",
    "outreach.reply_timeout": "leave it out; an e-mail fails after ten minutes without progress of the policy's server",
    "outreach.sends_per_email": "leave it out; an e-mail has 200 simulated recipients",
    "outreach.node_decay": "leave it out; 97% of the evidence is kept per iteration",
    "outreach.test_samples": "set outreach.test_prospects higher",
    "coding.coding_seed": "set coding.dataset_size and coding.coding_test_size; the choice of bugs is fixed",
    "coding.sandbox_patience": "leave it out; a busy sandbox is waited for for five minutes",
    "data.excluded_questions": "leave the questions out of the folder of data.train_questions",
    "data.max_recipients": "leave it out; mails to more than 30 people are circulars, and dropped",
    "trainer.torch.lora_alpha": "set trainer.learning_rate; alpha is twice lora_rank",
    "trainer.torch.max_grad_norm": "set trainer.learning_rate; gradients are clipped to the norm 1",
    "trainer.torch.draft_tokens": "leave it out, because speculation changes the speed only",
    "agent.optional_arguments": "leave it out, because it makes every prompt longer; the tools accept those arguments anyway",
    "agent.rollout_timeout": "leave it out; an episode fails after five minutes without progress of the policy's server",
    "data.synthetic_mails_per_inbox": "set data.synthetic_questions_per_inbox; an inbox has 45 mails for 16 questions",
}
"""Setting, or part of one -> what to do instead."""
FIXED: dict[str, Any] = {
    "trainer.stall_seconds": 300.0,
    "trainer.health.memory_share": 0.9,
    "trainer.health.gpu_share": 0.98,
    "trainer.health.free_share": 0.05,
    "trainer.health.stale_seconds": 3600.0,
    "trainer.health.server_seconds": 10.0,
    "trainer.alert_share": 0.4,
    "trainer.warm_start_epochs": 1,
    "trainer.warm_start_batch_size": 2,
    "trainer.episode_share": 0.0,
    "trainer.ruler_attempts": 6,
    "trainer.ruler_backoff": 2.0,
    "trainer.ruler_timeout": 600.0,
    "outreach.reply_timeout": 600.0,
    "outreach.sends_per_email": 200,
    "outreach.node_decay": 0.97,
    "outreach.test_samples": 1,
    "coding.coding_seed": 42,
    "coding.sandbox_patience": 300.0,
    "trainer.torch.max_grad_norm": 1.0,
    "trainer.torch.draft_tokens": 12,
    "agent.optional_arguments": False,
    "agent.rollout_timeout": 300.0,
}
"""Setting that runs of earlier versions recorded and that acts on their next steps -> its value now."""
RENAMED = {"agent.reads_in_vain": "agent.max_wrong_reads"}
"""Setting -> its name now."""


def gone(path: str) -> str | None:
    """Return what to say of a setting of earlier versions, named with or without its section; None for any other name."""
    for known, instead in (GONE | {old: f"it is {new} now" for old, new in RENAMED.items()}).items():
        if path in (known, known.partition(".")[2]):
            return f"{known} is not a setting any more: {instead}"
    return None


def without_gone(flat: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the settings of a recorded run, which have no sections, under their names now and without those that are gone.

    `above` is the setting, with a dot, whose parts are in `flat`.
    """
    renamed = {old.partition(".")[2]: new.partition(".")[2] for old, new in RENAMED.items()}
    return {
        renamed.get(key, key): without_gone(value, f"{above}{key}.") if isinstance(value, Mapping) else value
        for key, value in flat.items()
        if key in renamed or gone(f"{above}{key}") is None
    }


def fixed_otherwise(flat: Mapping[str, Any]) -> list[str]:
    """Return, in words, the settings of a recorded run whose value is another one than the one that is fixed now."""
    said = []
    for path, fixed in {**FIXED, "trainer.torch.lora_alpha": 2 * flat.get("lora_rank", 0)}.items():
        *above, key = path.split(".")[1:]
        part: Any = flat
        for name in above:
            part = part.get(name, {})
        if part.get(key) not in (None, fixed):
            said.append(f"{path}={json.dumps(part[key])} (now {json.dumps(fixed)})")
    return said
