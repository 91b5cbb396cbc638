"""A prompted model plays the agent's episodes, on loopback, and what it cost is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agent.prompted import PromptedModel
from agent.rollout import answer_question
from agent.settings import AgentSettings
from environment.email_db import MailDatabase
from environment.models import Scenario
from tests.fakes.language_model import LanguageModel, Reply
from training.errors import BadInput


def call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


class Prompted(LanguageModel):
    """Searches, then answers; or says what `says` has."""

    says: Reply | None = None

    def answer(self, request: dict[str, Any]) -> Reply:
        if self.says is not None:
            return self.says
        if request["messages"][-1]["role"] == "tool":
            return call("return_final_answer_tool", '{"answer": "555-0173", "source_ids": [1]}')
        return call("search_inbox_tool", '{"keywords": ["Dana Voss"]}')


@pytest.fixture
def model() -> Iterator[Prompted]:
    with Prompted() as server:
        yield server


def play(model: Prompted, database: MailDatabase, scenario: Scenario, name: str = "openai/gpt-4.1") -> Any:
    mailbox = database.mailbox(scenario.inbox_address, scenario.query_date)
    prompted = PromptedModel(model=name, api_base=model.url, max_tokens=64)
    return asyncio.run(answer_question(prompted, mailbox, scenario.question, AgentSettings()))


def test_it_uses_the_tools_and_its_price_is_known(
    model: Prompted, database: MailDatabase, two_mail_question: Scenario
) -> None:
    run = play(model, database, two_mail_question)
    assert run.answer.answer == "555-0173" and run.answer.source_ids == ("<2@example.com>",) and run.turns == 2
    # Two requests of 1,000 and 100 tokens at gpt-4.1's 2 and 8 US dollars per million.
    assert run.prompt_tokens == 2000 and run.cost == pytest.approx(2 * (1000 * 2e-6 + 100 * 8e-6))
    assert {tool["function"]["name"] for tool in model.requests[0]["tools"]} >= {"search_inbox_tool", "read_email_tool"}
    assert play(model, database, two_mail_question, name="openai/own").cost is None


@pytest.mark.parametrize(
    ("says", "outcome"), [("It is late.", "no_tool_call"), (call("search_inbox_tool", "{keywords"), "malformed_call")]
)
def test_a_reply_that_is_not_a_tool_call_ends_the_episode(
    model: Prompted, database: MailDatabase, two_mail_question: Scenario, says: Reply, outcome: str
) -> None:
    model.says = says
    assert play(model, database, two_mail_question).outcome == outcome


def test_a_model_that_fails_once_is_asked_again(
    model: Prompted, database: MailDatabase, two_mail_question: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, failures = model.answer, [503]
    monkeypatch.setattr(model, "answer", lambda request: failures.pop() if failures else answers(request))
    assert play(model, database, two_mail_question).answer.answer == "555-0173" and len(model.requests) == 3


def test_a_key_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(BadInput, match="baseline_model=openai/gpt-4.1 needs OPENAI_API_KEY"):
        PromptedModel(model="openai/gpt-4.1", max_tokens=8).require_ready("baseline_model")
    with pytest.raises(BadInput, match="names no provider"):
        PromptedModel(model="nobody", max_tokens=8).require_ready("baseline_model")


def test_a_model_that_refuses_or_is_not_there_is_named_before_it_plays(model: Prompted) -> None:
    own = PromptedModel(model="openai/own", api_base=model.url, max_tokens=8)
    model.says = "ready"
    own.require_ready("baseline_model")
    assert len(model.requests) == 1
    model.says = 401
    with pytest.raises(BadInput, match=f"^baseline_model=openai/own at {model.url} cannot be asked: .*401") as caught:
        own.require_ready("baseline_model")
    assert "\n" not in str(caught.value) and len(model.requests) == 2
    with pytest.raises(BadInput, match="^baseline_model=openai/own at http://127.0.0.1:9/v1 cannot be asked: "):
        own.model_copy(update={"api_base": "http://127.0.0.1:9/v1"}).require_ready("baseline_model")
