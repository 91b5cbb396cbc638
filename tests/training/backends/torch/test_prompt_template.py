"""For the templates of the models that the profiles name: what is trained on is what was sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from art.preprocessing.tokenize import tokenize_trajectory
from art.trajectories import History, Trajectory
from openai.types.chat.chat_completion import Choice
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tasks.outreach.tools import TOOLS as OF_OUTREACH
from tests.described_arguments import full_schemas
from training.backends.model_sources.wheels import CHATML_COMPACT, CHATML_HERMES
from training.backends.prompt_template import (
    QWEN3_WITHOUT_THOUGHTS,
    load_tokenizer,
    replaced_template,
    require_growing_prompts,
)
from training.backends.serving import serve_arguments
from training.backends.torch.chat_format import ordered_tool
from training.errors import BadInput
from training.session import model_config
from training.settings import TrainerSettings

pytestmark = pytest.mark.service

TEMPLATES = Path(__file__).parents[1] / "chat_templates"
FAMILIES = {
    "qwen2.5": TEMPLATES / "qwen2_5.jinja",
    "qwen3": TEMPLATES / "qwen3.jinja",
    "qwen3-instruct-2507": TEMPLATES / "qwen3_instruct_2507.jinja",
    "smollm2": CHATML_HERMES,
    "smollm2-compact": CHATML_COMPACT,
}
OF_MAIL = full_schemas()
OPENING = [{"role": "system", "content": "Repair the bug."}, {"role": "user", "content": "It prints 1."}]
CALL = '<tool_call>\n{"name": "search_inbox_tool", "arguments": {"keywords": ["Ann"]}}\n</tool_call>'
EPISODES = {
    "cells": (["\n```python\nfix('x')\n```", "<think>\nIs it done?\n</think>\n\nfinish()", "finish()"], "user"),
    "calls": ([CALL, "I look.\n" + CALL, CALL], "tool"),
}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, llama_dir: Path, tmp_path: Path) -> Path:
    return model_with(FAMILIES[request.param].read_text(), llama_dir, tmp_path)


def model_with(template: str, llama_dir: Path, folder: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(llama_dir)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def sampled(tokenizer: PreTrainedTokenizerBase, text: str) -> Choice:
    ids = tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    content = [
        {"token": f"token_id:{i}", "logprob": -1.0, "bytes": list(tokenizer.decode([i]).encode()), "top_logprobs": []}
        for i in ids
    ]
    message = {"role": "assistant", "content": text}
    return Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
    )


@pytest.mark.parametrize("kind", EPISODES)
def test_every_reply_is_trained_on_in_the_context_it_was_sampled_in(model: Path, kind: str) -> None:
    replies, told = EPISODES[kind]
    as_served = AutoTokenizer.from_pretrained(
        model
    )  # vLLM's: the template of its command line, and no options in requests
    if (template := replaced_template(model)) is not None:
        as_served.chat_template = template.read_text()
    tools: list[Any] | None = OF_MAIL if told == "tool" else None
    record: list[Any] = list(OPENING)
    sent: list[dict[str, Any]] = [dict(message) for message in OPENING]
    contexts: list[str] = []
    for reply in replies:
        contexts.append(as_served.apply_chat_template(sent, tools=tools, add_generation_prompt=True, tokenize=False))
        observation = {"role": told, "content": "Nothing."} | ({"tool_call_id": "c"} if told == "tool" else {})
        record += [sampled(as_served, reply), observation]
        sent += [{"role": "assistant", "content": reply}, observation]
    history = History(messages_and_choices=record, tools=tools)
    trained = tokenize_trajectory(
        load_tokenizer(model),
        None,
        history,
        1.0,
        False,
        Trajectory(messages_and_choices=record, reward=1.0),
        chat_template_tool_schema_format=model_config(TrainerSettings(backend="local"))[
            "chat_template_tool_schema_format"
        ],
    )
    assert trained is not None
    for start, context, reply in zip(trained.choice_offsets, contexts, replies, strict=True):
        assert as_served.decode(trained.token_ids[:start], clean_up_tokenization_spaces=False) == context
        ids = as_served.encode(reply + "<|im_end|>", add_special_tokens=False)
        assert trained.token_ids[start : start + len(ids)] == ids
        assert all(trained.assistant_mask[start : start + len(ids)])
    assert sum(trained.assistant_mask) == sum(
        len(as_served.encode(reply + "<|im_end|>", add_special_tokens=False)) for reply in replies
    )


def test_art_and_vllm_get_the_template_of_qwen3_and_others_keep_their_own(llama_dir: Path, tmp_path: Path) -> None:
    qwen3 = model_with(FAMILIES["qwen3"].read_text(), llama_dir, tmp_path / "qwen3")
    qwen2 = model_with(FAMILIES["qwen2.5"].read_text(), llama_dir, tmp_path / "qwen2")
    local = TrainerSettings(backend="local")
    assert model_config(local, replaced_template(qwen3))["chat_template_path"] == str(QWEN3_WITHOUT_THOUGHTS)
    assert "chat_template_path" not in model_config(local, replaced_template(qwen2))
    words = serve_arguments(qwen3, {}, 8000)
    assert words[words.index("--chat-template") + 1] == str(QWEN3_WITHOUT_THOUGHTS)
    assert "--chat-template" not in serve_arguments(qwen2, {}, 8000)


def test_a_template_that_takes_back_earlier_turns_is_refused(llama_dir: Path, tmp_path: Path) -> None:
    for number, template in enumerate(FAMILIES.values()):
        for backend in ("local", "torch"):
            require_growing_prompts(model_with(template.read_text(), llama_dir, tmp_path / str(number)), backend)
    another = FAMILIES["qwen3"].read_text().replace('{\\"name\\": <function-name>', "<function=")
    with pytest.raises(BadInput, match="^base_model: the chat template of another changes earlier turns"):
        require_growing_prompts(model_with(another, llama_dir, tmp_path / "another"), "local")


@pytest.mark.parametrize(("file", "content"), [("tokenizer.json", '{"version"'), ("chat_template.jinja", "{% for")])
def test_a_damaged_tokenizer_or_template_is_said_to_be_so(
    llama_dir: Path, tmp_path: Path, file: str, content: str
) -> None:
    model = model_with(FAMILIES["qwen2.5"].read_text(), llama_dir, tmp_path)
    (model / file).write_text(content)
    with pytest.raises(BadInput, match="^base_model: the tokenizer or chat template in .* cannot be used: "):
        require_growing_prompts(model, "torch")


def test_tools_are_written_in_the_order_in_which_vllm_renders_them() -> None:
    for tool in [*OF_MAIL, *OF_OUTREACH]:
        assert list(tool) == list(ordered_tool(tool)) and list(tool["function"]) == list(ordered_tool(tool)["function"])
