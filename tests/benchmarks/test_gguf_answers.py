"""What stands between the agent and a server that knows no tools, and what counts as the same episode."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from benchmarks import gguf_answers
from benchmarks.gguf_answers import TextOnly, same_replies
from environment.tools import tool_schemas
from tests.tiny_checkpoint import tiny_checkpoint

TEMPLATE = (Path(__file__).parents[2] / "training/backends/chat_templates/chatml_compact.jinja").read_text()


def test_calls_are_text_for_the_server_and_parsed_for_the_agent(tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text('FROM x\nSYSTEM """Answer.\n>>search keywords"""\n')
    arguments = argparse.Namespace(export=tmp_path, url="http://127.0.0.1:1/v1/", model="agent")
    between = TextOnly(arguments, TEMPLATE)
    seen = []

    def upstream(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, json.loads(request.content)))
        return httpx.Response(
            200, json={"choices": [{"message": {"content": '>>search "kickoff"'}, "finish_reason": "stop"}]}
        )

    between.client = httpx.Client(base_url="http://there/v1", transport=httpx.MockTransport(upstream))
    turns = [{"role": "system", "content": "other"}, {"role": "user", "content": "When?"}]
    turns += [{"role": "assistant", "content": '>>search "a"', "tool_calls": []}, {"role": "tool", "content": "1 mail"}]
    asked = {"messages": turns, "tools": tool_schemas(), "max_completion_tokens": 9}
    with httpx.Client(trust_env=False) as client:
        reply = client.post(f"{between.url}/chat/completions", json=asked).json()["choices"][0]["message"]
    between.shutdown()
    [(path, request)] = seen
    assert path == "/v1/chat/completions" and "tools" not in request and request["max_tokens"] == 9
    assert [turn["content"] for turn in request["messages"]] == [
        "Answer.\n>>search keywords",
        "When?",
        '>>search "a"',
        "1 mail",
    ]
    assert all(turn.keys() == {"role", "content"} for turn in request["messages"])
    assert reply["content"] == '>>search "kickoff"'
    assert json.loads(reply["tool_calls"][0]["function"]["arguments"]) == {"keywords": ["kickoff"]}


def test_a_server_that_cannot_be_reached_is_one_line_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tiny_checkpoint(tmp_path, seed=1)
    (tmp_path / "Modelfile").write_text('SYSTEM """Answer."""')
    words = ["gguf_answers", str(tmp_path), str(checkpoint.path), "--url", "http://127.0.0.1:1/v1"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(gguf_answers, "open_policy_server", Mock(side_effect=AssertionError("answered here")))
    assert gguf_answers.main() == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: --url http://127.0.0.1:1/v1/ does not answer as model email-agent: ")


def test_a_server_that_ends_is_an_error_of_the_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Modelfile").write_text('SYSTEM """Answer."""')
    between = TextOnly(argparse.Namespace(export=tmp_path, url="http://127.0.0.1:1/v1", model="agent"), TEMPLATE)
    asked = {"messages": [], "tools": tool_schemas(), "max_completion_tokens": 9}
    with httpx.Client(trust_env=False) as client:
        assert client.post(f"{between.url}/chat/completions", json=asked).status_code == 502
    between.shutdown()
    assert "Traceback" not in capfd.readouterr().err


def test_the_same_episode_has_the_same_replies() -> None:
    assert same_replies([">>read 1", "so"], ['>>read 1\n<tool_call>\n{"name": "read"}\n</tool_call>', "so"])
    assert not same_replies([">>read 1"], [">>read 12"]) and not same_replies([">>read 1"], [">>read 1", "so"])
