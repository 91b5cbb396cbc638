"""The HTTP server as a client sees it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.training.backends.torch.tiny_models import random_adapter, save_tiny_model
from training.backends.torch import PolicyServer, TorchSettings
from training.backends.torch.network import PolicyNetwork
from training.errors import BadInput

pytestmark = pytest.mark.service

USER = [{"role": "user", "content": "read the mails"}]


@pytest.fixture(scope="module")
def adapter_dir(llama_dir: Path, settings: TorchSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    network = PolicyNetwork(llama_dir, settings)
    network.save_adapter(random_adapter(network), folder)
    return folder


@pytest.fixture(scope="module")
def server(llama_dir: Path, adapter_dir: Path, settings: TorchSettings) -> Iterator[PolicyServer]:
    with PolicyServer(llama_dir, {"trained": adapter_dir}, settings) as server:
        yield server


@pytest.fixture
def client(server: PolicyServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)


def ask(client: openai.OpenAI, **changes: Any) -> Any:
    return client.chat.completions.create(**{"model": "base", "messages": USER, "max_tokens": 8, **changes})


def test_reply_with_usage_and_token_ids(client: openai.OpenAI) -> None:
    reply = ask(client, logprobs=True, seed=1, extra_body={"return_token_ids": True})
    content = reply.choices[0].logprobs.content
    assert all(token.token.startswith("token_id:") and token.logprob <= 0 for token in content)
    assert reply.usage.completion_tokens == len(content)
    assert reply.usage.prompt_tokens == len(reply.prompt_token_ids)
    assert reply.choices[0].finish_reason in ("stop", "length")


def test_greedy_is_deterministic_and_adapters_differ(client: openai.OpenAI) -> None:
    texts = [ask(client, model=name, temperature=0).choices[0].message.content for name in ("base", "trained") * 2]
    assert texts[:2] == texts[2:]
    assert texts[0] != texts[1]


def test_stop_cuts_the_text(client: openai.OpenAI) -> None:
    whole = ask(client, temperature=0, max_tokens=30).choices[0].message.content
    stop = whole[5:8]
    cut = ask(client, temperature=0, max_tokens=30, stop=stop).choices[0]
    assert cut.message.content == whole.split(stop)[0]
    assert cut.finish_reason == "stop"


def test_models_health_and_metrics(server: PolicyServer, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["base", "trained"]
    root = server.base_url.removesuffix("/v1")
    assert client._client.get(f"{root}/health").json() == {"status": "ok"}
    assert client._client.get(f"{root}/metrics").json()["requests"] >= 0


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"model": "nobody"}, 404, "nobody"),
        ({"max_tokens": 5000}, 400, "max_tokens is 5000"),
        ({"temperature": -1}, 400, "temperature"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "mails " * 2000}]}, 400, "Shorten the prompt"),
        ({"n": 0}, 400, "n:"),
        ({"stop": ""}, 400, "stop"),
        ({"max_tokens": 5000, "stream": True}, 400, "max_tokens is 5000"),
    ],
)
def test_bad_requests_say_why(client: openai.OpenAI, changes: dict, status: int, message: str) -> None:
    with pytest.raises(openai.APIStatusError, match=message) as caught:
        ask(client, **changes)
    assert caught.value.status_code == status


def test_n_replies_are_those_of_consecutive_seeds(client: openai.OpenAI) -> None:
    several = ask(client, n=3, seed=5, logprobs=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    alone = [ask(client, seed=seed) for seed in (5, 6, 7)]
    assert [choice.message.content for choice in several.choices] == [
        reply.choices[0].message.content for reply in alone
    ]
    assert several.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert several.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in several.choices)


def wait_until_nothing_runs(server: PolicyServer) -> None:
    deadline = time.monotonic() + 300
    while server._engine.running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server._engine.running() == 0


def test_a_client_that_goes_away_frees_its_place(server: PolicyServer) -> None:
    async def leave() -> None:
        client = openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        request = client.chat.completions.create(model="base", messages=USER, max_tokens=900, temperature=0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request, 0.05)
        await client.close()

    asyncio.run(leave())
    wait_until_nothing_runs(server)


def test_an_adapter_of_another_base_is_refused(adapter_dir: Path, settings: TorchSettings, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", "llama", hidden=60)
    with pytest.raises(BadInput, match="another base model"):
        PolicyServer(other, {"trained": adapter_dir}, settings)
    with pytest.raises(BadInput, match="adapter_config.json is missing"):
        PolicyServer(other, {"trained": tmp_path}, settings)
    with pytest.raises(BadInput, match="No model in"):
        PolicyServer(tmp_path, {}, settings)


def test_metrics_is_json(server: PolicyServer, client: openai.OpenAI) -> None:
    body = client._client.get(server.base_url.removesuffix("/v1") + "/metrics").text
    assert {"running", "waiting", "sampled_tokens", "reused_tokens"} <= json.loads(body).keys()
