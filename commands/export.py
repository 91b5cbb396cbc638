"""`--pipeline export`: a trained checkpoint as files for PEFT, transformers, vLLM, llama.cpp and Ollama, with a model card."""

from __future__ import annotations

import os
from pathlib import Path

from configs.config import Config
from reports.console import say
from steps.exported_model import CARD, MAIL_AGENT, Agent, Form, export_checkpoint, require_empty
from steps.learn_loop.world import TASK as OUTREACH
from steps.learn_loop.world import model_name
from steps.model_registry import describe_version, find_checkpoint
from steps.project import MODELS
from steps.published_model import base_model_files
from tasks import load_plugin
from training.backends.base_model import resolve_base_model
from training.record.experiment import MAIL_TASK

FORMS: dict[Form, str] = {"adapter": "adapter", "merged": "merged model", "gguf": "GGUF files, Modelfile"}


def run_export(folder: Path, config: Config, *, form: Form, checkpoint: str | None, base_model: str | None) -> None:
    """Export the named checkpoint, or else the task's version in production, or else its newest.

    Raises:
        BadInput: `folder` is not empty, nothing is trained yet, the checkpoint is damaged or another task's, or its base model
            is unavailable.
    """
    require_empty(folder)
    agent = _agent(config)
    stored = find_checkpoint(checkpoint, model=agent.model)
    manifest = stored.checkpoint.manifest
    stored.checkpoint.require_task(config.task)
    if base_model is None:
        base = base_model_files(manifest.base_model_source, manifest.base_model_checksum, progress=say)
    else:
        base = resolve_base_model(base_model, MODELS, progress=say)
    stored.checkpoint.require_base(base)
    version = describe_version(stored.model_version) if stored.model_version else manifest.name
    say(f"exporting {version}: step {manifest.step} of {manifest.base_model}")
    export_checkpoint(stored.checkpoint, base, folder, form, agent)
    say(f"{FORMS[form]} and model card written to {os.path.relpath(folder)}; the {CARD} there says how to serve it")


def _agent(config: Config) -> Agent:
    if config.task == MAIL_TASK:
        return MAIL_AGENT
    if config.task == OUTREACH:
        return Agent("Outreach agent", model_name())
    plugin = load_plugin(config.task)
    return Agent(plugin.title, plugin.model_name(config.for_task(plugin.settings)))
