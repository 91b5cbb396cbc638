"""Another task than mail behind the same doors; deployed, it is in `tests/test_example_task.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from serving.access import Keys, Origins
from serving.app import ServiceApp
from serving.service import describe_model
from serving.settings import ServingSettings
from serving.task_service import TaskService
from tests.serving.service_client import KEYS, OWNER_KEY, URL, bearer, waited
from training.errors import BadInput
from training.plugin import Attempt
from training.task import Policy


async def attempt(policy: Policy, scenario: str, *, hosted: bool) -> Attempt:
    assert policy.model == "m" and not hosted
    return Attempt(
        correct=False,
        answer=scenario.upper(),
        turns=2,
        transcript=[{"role": "user", "content": scenario}],
        sampled_tokens=5,
    )


def scenario_of(question: str) -> str:
    if question.isdigit():
        raise BadInput("is a number: write words")
    return question


@pytest.fixture
def recorded() -> list[Any]:
    return []


@pytest.fixture
def client(tmp_path: Path, recorded: list[Any]) -> Iterator[TestClient]:
    server: Any = SimpleNamespace(base_url="http://127.0.0.1:9", capacity=2, healthy=lambda: True, close=lambda: None)
    task: Any = SimpleNamespace(attempt=attempt)
    closed: list[bool] = []

    def load() -> TaskService:
        model = describe_model("here", "t123456789", 3, "a model")
        policy = Policy(base_url=server.base_url, model="m")
        return TaskService(server, lambda _: policy, model, task, scenario_of, lambda: closed.append(True))

    service: list[TaskService] = []
    settings = ServingSettings(keys=KEYS, feedback_folder=tmp_path / "feedback")
    app = ServiceApp(
        lambda: service.append(load()) or service[-1],  # type: ignore[func-returns-value]
        lambda: service[-1].close(),
        recorded.append,
        name="words",
        settings=settings,
        keys=Keys(OWNER_KEY, settings.keys),
        origins=Origins("127.0.0.1", (), open_to_any=True),
        task="Words",
    )
    with TestClient(app.asgi, base_url=URL) as http:
        yield http
    assert closed == [True] and not (tmp_path / "feedback").exists()


def test_a_question_gets_the_attempt(client: TestClient, recorded: list[Any]) -> None:
    def ask(key: str = OWNER_KEY, **parameters: Any) -> Any:
        return client.post("/invoke", json={"parameters": parameters}, headers=bearer(key) if key else {})

    reply = ask(question="hello").json()
    assert (reply["question"], reply["answer"]) == ("hello", "HELLO")
    assert reply["transcript"] == [{"role": "user", "content": "hello"}]
    about = reply["metadata"]
    assert (about["episode"]["outcome"], about["episode"]["turns"]) == ("finished", 2)
    assert about["parameters_used"] == {"question": "hello"} and about["model"]["mails"] is None
    assert "sampled_tokens_total 5.0" in client.get("/metrics", headers=bearer(OWNER_KEY)).text
    waited(lambda: recorded)
    assert recorded[0].metadata.run_name == about["run_name"]
    assert ask(key="", question="hello").status_code == 401
    for parameters, said in (
        ({"question": "12"}, "parameters.question: is a number: write words"),
        ({"question": " "}, "parameters.question: is empty"),
        ({"question": "x" * 4001}, "has 4,001 characters"),
        ({"question": "hello", "inbox_address": "a@b.c"}, "parameters.inbox_address: Extra inputs"),
        ({}, "parameters.question: Field required"),
    ):
        refused = ask(**parameters)
        assert refused.status_code == 422 and said in refused.json()["error"]
    documented = client.get("/openapi.json").json()
    assert documented["info"]["title"] == "Words"
    assert set(documented["paths"]) == {"/invoke", "/model", "/health", "/metrics"}
    assert client.get("/").status_code == 404
