"""Random bodies for every route of the sandbox, and random bytes on the link of a cell: an answer in words, no leak.

Each nightly test runs for `SECONDS` with a new seed, which its failure names.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from sandbox.app import create_app
from sandbox.limits import Limits
from sandbox.settings import SandboxSettings
from tests.sandbox.isolated import isolated_runner
from tests.sandbox.test_hostile_programs import descendants, ended
from tests.sandbox.test_link import LINK

pytestmark = pytest.mark.service

SECONDS = 600
LIMITS = Limits(wall_seconds=1.0, cpu_seconds=0.9, processes=8)
ROUTES = [
    *(("POST", f"/{name}") for name in ("snapshots", "workspaces", "tests", "suites")),
    *(
        ("POST", "/workspaces/{id}/cells"),
        ("PUT", "/workspaces/{id}/files/{path}"),
        ("GET", "/workspaces/{id}/changes"),
    ),
    *(("GET", "/workspaces/{id}/files/{path}"), ("DELETE", "/workspaces/{id}"), ("GET", "/health")),
]
KEYS = ["files", "snapshot", "image", "code", "content", "patch", "changed", "deleted", "checks", "expected", "suite"]
KEYS += ["name", "folder", "hidden", "command", "a.py", "../x", "", "\ud800", "tests", "tests/a.py", "conftest.py/x"]
TEXTS = [
    "",
    "1 + 1",
    "a.py",
    "/",
    "..",
    "\x00",
    "\ud800",
    "é😀",
    "x" * 5000,
    "raise ValueError",
    "exit()",
    "/work",
    "%2e%2e",
    "(",
]
VALUES = [None, True, 0, -1, 10**30, 1e308, float("nan"), float("inf"), [], {}]


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 3 or kind < 0.5:
        return chance.choice([*TEXTS, *VALUES])
    if kind < 0.65:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(KEYS): value(chance, depth + 1) for _ in range(chance.randrange(5))}


def body(chance: random.Random, snapshot: str) -> bytes:
    """A body that is often nearly right, sometimes cut or changed in one byte."""
    check = {"code": chance.choice(TEXTS), "expected": chance.choice(TEXTS)}
    right: dict[str, Any] = {
        "snapshot": snapshot,
        "checks": [check],
        "code": "1 + 1",
        "content": "x",
        "files": {"a.py": "x = 1\n"},
    }
    chosen = {
        key: right[key]
        for key in chance.choice([["snapshot"], ["snapshot", "checks"], ["code"], ["content"], ["files"], []])
    }
    for _ in range(chance.randrange(3)):
        chosen[chance.choice(KEYS)] = value(chance)
    content = json.dumps(chosen if chance.random() < 0.9 else value(chance)).encode()
    if chance.random() < 0.2 and content:
        at = chance.randrange(len(content))
        content = content[:at] + (chance.randbytes(1) + content[at + 1 :] if chance.random() < 0.5 else b"")
    return content


def fuzz_bodies(seconds: float) -> None:
    seed = random.randrange(1 << 30)
    chance, until, opened = random.Random(seed), time.monotonic() + seconds, list[str]()
    runner = isolated_runner(LIMITS)
    with TestClient(create_app(SandboxSettings(capacity=4, wait_seconds=0.1, limits=LIMITS), runner)) as client:
        while time.monotonic() < until:
            snapshot = client.post("/snapshots", json={"files": {"a.py": "x = 1\n"}}).json()["snapshot"]
            method, path = chance.choice(ROUTES)
            place = path.format(
                id=chance.choice(opened or ["none"]), path=chance.choice(["a.py", "..", "%00", "%ff", "d/e"])
            )
            sent = body(chance, snapshot)
            answer = client.request(method, place, content=sent, headers={"Content-Type": "application/json"})
            assert answer.status_code < 500 or answer.status_code == 503, (seed, method, place, sent, answer.text)
            if answer.is_error:
                assert len(answer.text) < 2000 and "detail" in answer.json(), (seed, method, place, sent)
            elif path == "/workspaces":
                opened.append(answer.json()["id"])
                if len(opened) > 3:
                    client.delete(f"/workspaces/{opened.pop(0)}")
        for id in opened:
            client.delete(f"/workspaces/{id}")
        assert client.get("/health").json()["in_use"] == 0, seed


def fuzz_link(seconds: float) -> None:
    seed = random.randrange(1 << 30)
    chance, until = random.Random(seed), time.monotonic() + seconds
    runner = isolated_runner(LIMITS)
    before = descendants(os.getpid())
    workspace = runner.open()
    while time.monotonic() < until:
        length = chance.choice([0, 1, 3, 60, 4000, 1 << 18, (1 << 18) + 1, 1 << 31, chance.randrange(1 << 12)])
        message = (
            json.dumps(value(chance)).encode() if chance.random() < 0.7 else chance.randbytes(chance.randrange(100))
        )
        data = chance.choice([b"", length.to_bytes(4, "big"), len(message).to_bytes(4, "big")]) + message
        pieces = sorted(chance.sample(range(len(data) + 1), min(3, len(data) + 1)))
        ends = "for first, last in zip([0, *pieces], [*pieces, None]):\n    os.write(link, data[first:last])"
        send = f"data, pieces = {data!r}, {pieces!r}\n{ends}"
        seen = workspace.exec(
            LINK + send + chance.choice(["", "\nos._exit(0)", "\ntime.sleep(0.2)", "\nos.close(link)"])
        )
        assert len(seen.output) < 2 * LIMITS.output_bytes and seen.seconds < 60, (seed, data, pieces, seen)
        found = [workspace.exec("1 + 1") for _ in range(3)][-1]
        assert found.output == "2\n", (seed, data, pieces, found)
        if chance.random() < 0.1:
            workspace.close()
            workspace = runner.open()
    workspace.close()
    assert ended(before), seed
    runner.close()


@pytest.mark.parametrize("fuzz", [fuzz_bodies, fuzz_link])
def test_random_input_for_a_moment(fuzz: Any) -> None:
    fuzz(3.0)


@pytest.mark.nightly
@pytest.mark.parametrize("fuzz", [fuzz_bodies, fuzz_link])
def test_random_input_at_length(fuzz: Any) -> None:
    fuzz(SECONDS)
