"""The README of an exported model: origin, training data, evaluation and usage."""

from __future__ import annotations

import json
import shlex
from importlib import resources

from reports.page import Row
from reports.tables import correct, number, percent

_LLAMA_CPP = """from llama_cpp import Llama

model = Llama("model-f16.gguf", n_ctx=8192)
reply = model.create_chat_completion(messages, tools=tools, temperature=0)"""


def model_card(
    manifest: Row,
    *,
    form: str,
    lora_rank: int,
    registered: str,
    data: list[str],
    summary: Row | None,
    judge: str | None,
    title: str,
    prompts: dict[str, str] | None,
    tools: list[Row],
    compact_calls: bool,
) -> str:
    """Return Markdown with the front matter of a Hugging Face model card.

    `form` is adapter, merged or gguf, `manifest` the checkpoint's, `summary` the closing table of its evaluation (None: it
    was not evaluated), `data` one sentence per data artifact, `judge` what decided which answers are correct, and `prompts`
    has the texts `system` and `question` (both are None if the task's own code does that).
    `compact_calls`: the chat template writes calls that vLLM does not parse.
    """
    config = manifest["config"]
    shown = ("backend", "scoring", "max_steps", "demonstrations", "continue_from", "learning_rate", "lora_rank", "seed")
    file = "task_card.md" if prompts is None else "model_card.md"
    template = resources.files("reports").joinpath("assets", file).read_text(encoding="utf-8")
    return template.format(
        **{
            key: manifest[key] for key in ("base_model", "base_model_source", "base_model_checksum", "adapter_checksum")
        },
        title=f"{title}, run {manifest['name']}",
        library={"adapter": "peft", "merged": "transformers", "gguf": "gguf"}[form],
        files={
            "adapter": "a LoRA adapter and its tokenizer",
            "merged": "the base model with the adapter merged into it",
            "gguf": "the base model with the adapter merged into it, as GGUF in several precisions",
        }[form],
        name=manifest["name"],
        step=manifest["step"],
        created=manifest["created"],
        registered=registered,
        trained_with=", ".join(f"{key} {config[key]}" for key in shown if config.get(key) is not None)
        or "not recorded",
        alerts=", ".join(manifest["alerts"]) or "none",
        data="\n".join(f"* {sentence}" for sentence in data) or "Not recorded.",
        evaluation=_evaluation(summary, judge),
        **{key: config.get(key, "-") for key in ("max_turns", "max_tokens", "max_results", "read_chars")},
        question=prompts["question"] if prompts else "",
        system_prompt=prompts["system"] if prompts else "",
        tools=json.dumps(tools, indent=2),
        needs="In this folder:"
        if form != "adapter"
        else "The adapter fits the base weights with the checksum above and no others. In this folder:",
        serving=_serving(manifest, form, lora_rank, compact_calls),
        loading=_loading(manifest, form),
    )


def _evaluation(summary: Row | None, judge: str | None) -> str:
    if summary is None:
        return "This checkpoint was not evaluated."
    lines = [
        f"{summary['n']} held-out {f'questions, answers judged by {judge}' if judge else 'scenarios'}:",
        "",
        "| policy | n | errors | correct (95% interval) | answered | source recall | turns |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in [*summary["policies"].items(), *summary["baselines"].items()]:
        figures = (
            row["n"],
            row["errors"],
            correct(row),
            percent(row["answer_rate"]),
            percent(row["source_recall"]),
            number(row["turns"], 1),
        )
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(map(str, figures))} |")
    if promotion := summary.get("promotion"):
        verdict = "promoted to production" if promotion["promoted"] else "not promoted"
        lines += ["", f"Gate: {verdict}, {promotion['reason']}."]
    return "\n".join(lines)


def _serving(manifest: Row, form: str, lora_rank: int, compact_calls: bool) -> str:
    # The other chat templates of the models that the project trains write tool calls as Hermes does.
    tools = " --enable-auto-tool-choice --tool-call-parser hermes"
    note = ""
    if compact_calls:
        note = '# Calls come as text, one line each: >>search "words". The server of the project that trained this parses them.\n'
        tools = ""
    if form == "gguf":
        return f"{note}ollama create email-agent -f Modelfile\nllama-server -m model-f16.gguf --jinja"
    if form == "merged":
        return f"{note}vllm serve . --served-model-name email-agent{tools}"
    base = shlex.quote(manifest["base_model"])
    # vLLM accepts these ranks only.
    rank = next((size for size in (1, 8, 16, 32, 64, 128, 256, 320, 512) if size >= lora_rank), lora_rank)
    return (
        f"{note}vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules email-agent=. \\\n"
        f"  --tokenizer . --chat-template chat_template.jinja{tools}"
    )


def _loading(manifest: Row, form: str) -> str:
    if form == "gguf":
        return _LLAMA_CPP
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if form == "merged":
        lines.append('model = AutoModelForCausalLM.from_pretrained(".", dtype="auto")')
    else:
        lines.insert(0, "from peft import PeftModel")
        base = json.dumps(manifest["base_model"])
        lines.append(
            f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base}, dtype="auto"), ".")'
        )
    lines.append('tokenizer = AutoTokenizer.from_pretrained(".")')
    return "\n".join(lines)
