"""`--pipeline mcp` in front of a service with a scripted policy. A deployed one is in `test_deployment`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from mcp import Client, StdioServerParameters

from commands import running_service
from tests.fakes.policy import MailPolicy
from tests.front_door import FrontDoor
from tests.ports import free_port
from tests.serving.scripted_service import scripted_app, served
from tests.serving.service_client import ANNS_KEY, KEYS, OWNER_KEY

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
COMMAND = ["--pipeline", "mcp", "--name", "here"]
PROGRAM = """
import sys
from types import SimpleNamespace
from commands import mcp, running_service

deployment = SimpleNamespace(url=sys.argv[1], auth_key=None)
running_service.Client = lambda: SimpleNamespace(get_deployment={"here": deployment}.__getitem__)
mcp.run_mcp("here")
"""


@pytest.fixture(scope="module")
def url(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_app(policy, tmp_path_factory.mktemp("service"), key=OWNER_KEY, keys=KEYS)) as address:
        yield address


@pytest.fixture
def deployment(url: str) -> SimpleNamespace:
    return SimpleNamespace(url=url, auth_key=OWNER_KEY)


@pytest.fixture
def door(deployment: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    """ZenML knows one deployment, `here`."""
    known = SimpleNamespace(get_deployment={"here": deployment}.__getitem__)
    monkeypatch.setattr(running_service, "Client", lambda: known)
    monkeypatch.delenv(running_service.KEY, raising=False)
    return FrontDoor(tmp_path / "door", monkeypatch)


def test_messages_are_passed_on_and_through_no_proxy(url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {
        "PYTHONPATH": str(ROOT),
        "EMAIL_AGENT_KEY": ANNS_KEY,
        "HTTP_PROXY": f"http://127.0.0.1:{free_port()}",
    }
    started = StdioServerParameters(command=sys.executable, args=[str(program), url], env=environment, cwd=tmp_path)

    async def talk() -> Any:
        async with Client(started) as client:
            return await client.call_tool("search_mail", {"keywords": ["budget"]})

    assert asyncio.run(talk()).structured_content["mails"][0]["subject"] == "Budget review"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("not one of its keys", "this key is not known"),
        ("schlüssel", "EMAIL_AGENT_KEY: has characters other than printable ASCII"),
        ("two\nlines", "EMAIL_AGENT_KEY: has characters other than printable ASCII"),
    ],
)
def test_a_wrong_key_is_one_line(door: FrontDoor, monkeypatch: pytest.MonkeyPatch, key: str, said: str) -> None:
    monkeypatch.setenv(running_service.KEY, key)
    assert said in door.refuses(*COMMAND)


def test_a_service_that_is_gone_or_has_no_tools(door: FrontDoor, deployment: SimpleNamespace) -> None:
    without_tools = FastAPI()
    without_tools.get("/model")(lambda: {})
    with served(SimpleNamespace(asgi=without_tools)) as deployment.url:  # type: ignore[arg-type]
        failures = [door.run(*COMMAND)]
    failures.append(door.run(*COMMAND))
    for done, cause in zip(failures, ("MCPError", "ConnectError"), strict=True):
        assert done.returncode == 1 and f"here does not answer at {deployment.url} ({cause})" in done.stderr
        assert done.stderr.count("\n") == 1
