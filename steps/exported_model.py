"""Export a checkpoint with a model card about its data and evaluation."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from zenml.client import Client
from zenml.models import ArtifactVersionResponse, ModelVersionResponse

from agent import prompts
from environment.tools import tool_schemas
from reports.console import say
from reports.model_card import model_card
from reports.modelfile import modelfile
from steps.artifact_names import CHECKPOINT, MAIL_DATABASE, METRICS, MODEL_NAME, SCENARIOS
from steps.data.sources import settings_of_step
from steps.inference.service_lifecycle import episode_settings
from steps.model_registry import describe_mail
from training.backends.base_model import writes_compact_calls
from training.backends.export import GGUF_FLOAT16, write_adapter, write_gguf_files, write_merged
from training.backends.model_sources.folder import BaseModelFiles
from training.backends.prompt_template import load_tokenizer, template_options
from training.checkpoint import ADAPTER_CONFIG, Checkpoint, CheckpointManifest
from training.errors import BadInput
from training.files import is_disk_full
from training.settings import TrainerSettings

CARD = "README.md"
MODELFILE = "Modelfile"
Form = Literal["adapter", "merged", "gguf"]


@dataclass(frozen=True)
class Agent:
    """What its card calls an agent, and the name of its registered versions."""

    title: str
    model: str


MAIL_AGENT = Agent("E-mail search agent", MODEL_NAME)


def export_checkpoint(
    checkpoint: Checkpoint, base: BaseModelFiles, folder: Path, form: Form, agent: Agent = MAIL_AGENT
) -> None:
    """Write the adapter, or the merged model, also as GGUF, and its card to `folder`, all or nothing.

    A folder that exists is filled, not replaced: it may be a mount point.

    Raises:
        BadInput: `folder` is not empty, another export writes it, or the disk is full.
    """
    folder = folder.resolve()
    partial, lock_file = _work_files(folder)
    lock = FileLock(lock_file)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInput(
            f"--to {folder} is being written by another export: wait for it, or name another folder"
        ) from None
    except OSError as error:
        raise BadInput(f"--to {folder} cannot be made: {error.strerror}") from error
    try:
        require_empty(folder)
        shutil.rmtree(partial)  # a killed export leaves gigabytes
        partial.mkdir()
        if form == "gguf":
            written = write_gguf_files(checkpoint, base, partial, progress=say)
            if agent == MAIL_AGENT:
                (partial / MODELFILE).write_text(modelfile_of(checkpoint, base), encoding="utf-8")
        else:
            written = (write_merged if form == "merged" else write_adapter)(checkpoint, base, partial)
        (partial / CARD).write_text(card_of(checkpoint, written, form, agent), encoding="utf-8")
        if partial.parent == folder:
            for written_file in partial.iterdir():
                os.replace(written_file, folder / written_file.name)
        else:
            os.replace(partial, folder)
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_disk_full(error):
            raise BadInput(f"--to {folder}: no space left on the disk: free some and run again") from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock_file.unlink(missing_ok=True)  # filelock leaves it in the user's folder
        lock.release()


def require_empty(folder: Path) -> None:
    """Raise BadInput if an export to `folder` would overwrite something."""
    place = folder.resolve()
    if place.exists() and not (place.is_dir() and {*place.iterdir()} <= {*_work_files(place)}):
        raise BadInput(f"--to {folder} exists and is not empty: name a new folder")


def _work_files(folder: Path) -> tuple[Path, Path]:
    """Return where the files of an export are written first, and its lock: in the folder if it exists, else next to it."""
    place = folder if folder.is_dir() else folder.parent
    return place / f".{folder.name}.partial", place / f".{folder.name}.lock"


def modelfile_of(checkpoint: Checkpoint, base: BaseModelFiles) -> str:
    """Build Ollama's Modelfile. It has the system prompt and the tools as the policy was trained to read them."""
    settings = episode_settings(checkpoint.manifest.config)
    system = {"role": "system", "content": settings.system_prompt or prompts.load("system")}
    tools = tool_schemas()
    tokenizer = load_tokenizer(base.path)

    def render(messages: list[dict[str, str]]) -> str:
        rendered = tokenizer.apply_chat_template(
            [system, *messages], tools, tokenize=False, add_generation_prompt=True, **template_options(tokenizer)
        )
        return str(rendered)

    context = int(checkpoint.manifest.config.get("max_context", TrainerSettings.model_fields["max_context"].default))
    try:
        return modelfile(
            render, GGUF_FLOAT16, str(tokenizer.eos_token), max_tokens=settings.max_tokens, max_context=context
        )
    except ValueError as error:
        raise BadInput(f"export: Ollama's Modelfile cannot describe the chat template: {error}") from error


def card_of(checkpoint: Checkpoint, written: CheckpointManifest, form: Form, agent: Agent = MAIL_AGENT) -> str:
    """Build the model card from what this ZenML store knows about the checkpoint.

    `written` is the manifest of the exported files, whose adapter has other bytes than that of `checkpoint`.
    """
    manifest = checkpoint.manifest
    version = _model_version(manifest, agent.model)
    metrics = version.get_artifact(METRICS) if version else None
    if metrics is not None and not _is_about(metrics, version):
        metrics = None
    adapter = json.loads((checkpoint.path / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    return model_card(
        written.model_dump(mode="json"),
        form=form,
        lora_rank=adapter["r"],
        registered=_registered(version),
        data=[_described(name, id) for name, id in manifest.data.items()],
        summary=metrics.load() if metrics else None,
        judge=_judge(metrics) if metrics and agent == MAIL_AGENT else None,
        title=agent.title,
        **_usage(manifest, agent),
        compact_calls=writes_compact_calls(manifest.base_model_source),
    )


def _judge(metrics: ArtifactVersionResponse) -> str:
    """Return what decided which answers about mail are correct. Other tasks have verdicts of their own."""
    judged_by = settings_of_step(metrics)
    return judged_by.get("judge_model", "an LLM") if judged_by.get("judge") == "llm" else "exact comparison"


def _usage(manifest: CheckpointManifest, agent: Agent) -> dict[str, Any]:
    """Return what the card says about asking the policy."""
    if agent != MAIL_AGENT:
        return {"prompts": None, "tools": []}
    settings = episode_settings(manifest.config)
    shown = {"system": settings.system_prompt or prompts.load("system"), "question": prompts.load("question")}
    return {"prompts": shown, "tools": tool_schemas()}


def _model_version(manifest: CheckpointManifest, model: str) -> ModelVersionResponse | None:
    """Return the registered version of exactly this adapter, if any; a folder may come from another store."""
    with contextlib.suppress(KeyError):
        version = Client().get_model_version(model, manifest.name)
        stored = version.get_artifact(CHECKPOINT)
        if stored is not None and stored.run_metadata.get("checksum") == manifest.adapter_checksum:
            return version
    return None


def _is_about(metrics: ArtifactVersionResponse, version: ModelVersionResponse | None) -> bool:
    """Return whether the metrics are those of the version's own checkpoint.

    An evaluation may be of an earlier one. If its run was deleted, nobody knows.
    """
    if metrics.producer_step_run_id is None:
        return False
    own = version.get_artifact(CHECKPOINT) if version else None
    evaluated = metrics.step.inputs.get("checkpoint") or []
    return not evaluated or (own is not None and own.id in {artifact.id for artifact in evaluated})


def _registered(version: ModelVersionResponse | None) -> str:
    if version is None:
        return "not registered in this ZenML store"
    return f"{version.model.name}, version {version.name}, stage {version.stage or 'none'}"


def _described(name: str, id: str) -> str:
    try:
        version = Client().get_artifact_version(id)
    except KeyError:
        return f"{name}, artifact {id} (not in this ZenML store)"
    known: dict[str, Any] = version.run_metadata
    counts = ""
    if name == MAIL_DATABASE and {"kept", "inboxes"} <= known.keys():
        counts = f": {describe_mail(version)}"
    if name == SCENARIOS and {"train", "test"} <= known.keys():
        counts = f": {known['train']:,} questions to train on, {known['test']:,} held out"
    return f"{name} version {version.version} (artifact {id}){counts}"
