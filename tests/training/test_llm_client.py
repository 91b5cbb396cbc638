"""Repeated requests to a language model: what is repeated, how long it waits, and what is raised at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from litellm.exceptions import BadRequestError, ContentPolicyViolationError, ContextWindowExceededError
from openai import APIStatusError

from training.errors import BadInput
from training.llm_client import call_arguments, error_text, refusal, repeated


def status_error(status: int) -> APIStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")
    return APIStatusError(f"status\n{status}", response=httpx.Response(status, request=request), body=None)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr("training.llm_client.BACKOFF", 2.0)
    return found


def ask(outcomes: Sequence[Exception | str]) -> tuple[str | Exception, int]:
    """Return the result or the error, and the number of calls."""
    left = list(outcomes)

    async def next_outcome() -> str:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    try:
        result: str | Exception = asyncio.run(repeated(next_outcome))
    except Exception as error:
        result = error
    return result, len(outcomes) - len(left)


def test_errors_that_may_pass_are_repeated_with_growing_waits(waits: list[float]) -> None:
    outcomes = [status_error(429), status_error(503), TimeoutError(), ValueError("no JSON"), "fine", "never asked"]
    assert ask(outcomes) == ("fine", 5)
    assert waits == [2.0, 4.0, 8.0, 16.0]


def test_the_last_error_is_raised(waits: list[float]) -> None:
    last = ValueError("no JSON")
    assert ask([*[status_error(500)] * 5, last, "fine"]) == (last, 6)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_raised_at_once(waits: list[float], status: int) -> None:
    refused = status_error(status)
    assert ask([refused, "fine"]) == (refused, 1)
    assert waits == [] and refusal(refused, "ruler_model") and error_text(refused) == f"APIStatusError: status {status}"


@pytest.mark.parametrize("kind", [ContextWindowExceededError, ContentPolicyViolationError])
def test_a_request_that_is_too_long_or_filtered_is_not_repeated_and_says_nothing_about_others(
    waits: list[float], kind: type[BadRequestError]
) -> None:
    refused = kind("too long", model="own", llm_provider="openai")
    assert ask([refused, "fine"]) == (refused, 1)
    assert refusal(refused, "ruler_model") is None


def test_bad_input_and_mistakes_in_the_program_are_raised_at_once(waits: list[float]) -> None:
    for error in (BadInput("no such model"), KeyError("usage")):
        assert ask([error, "fine"]) == (error, 1)
    assert waits == []


def test_a_missing_model_names_both_settings() -> None:
    assert refusal(status_error(404), "question_model") == "is not there; check question_model and question_api_base"
    assert refusal(status_error(503), "question_model") is None and refusal(TimeoutError(), "question_model") is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"a": "half of a character: \\ud83d"}', '{"a": ' + "[" * 100_000]
)
def test_arguments_that_no_tool_can_take(text: str) -> None:
    assert call_arguments(text) is None
    assert call_arguments('{"a": "a character: \\ud83d\\ude00"}') == {"a": "a character: \U0001f600"}
