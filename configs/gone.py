"""Settings of earlier versions: an error says what to do instead, and runs that recorded them can still be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GONE = {
    "trainer.stall_seconds": "leave it out, because a warning after five minutes suits every run",
    "trainer.step_timeout": "set agent.rollout_timeout, which ends a rollout whose server makes no progress",
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
}
"""Setting, or part of one -> what to do instead."""
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
