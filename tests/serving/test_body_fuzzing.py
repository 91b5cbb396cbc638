"""Random bodies for every route of the service: an answer in one line, never an unexpected error.

The nightly test runs for `SECONDS` with a new seed, which its failure names.
"""

from __future__ import annotations

import json
import random
import time
from copy import deepcopy
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.serving.scripted_service import GOOD
from tests.serving.service_client import asked

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("calm")]

SECONDS = 600
PATHS = ["/invoke", "/submit", "/stream", "/feedback", "/results/none", "/inboxes", "/model"]
KEYS = ["parameters", *GOOD, "timeout", "run_name", "token", "verdict", "comment", "correct_answer", "", "\ud800"]
TEXTS = [
    "",
    "up",
    "2024-05-15",
    "ann@kestrel.example",
    "\x00",
    "\ud800",
    "\x85",
    "é😀",
    "x" * 5000,
    "{date}",
    "13:00",
    "0" * 400,
]
VALUES = [None, True, 0, -1, 10**400, 1e308, float("nan"), float("inf"), [], {}]


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 3 or kind < 0.6:
        return deepcopy(chance.choice([*TEXTS, *VALUES]))  # what is added to a value is not to stay in it
    if kind < 0.7:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(KEYS): value(chance, depth + 1) for _ in range(chance.randrange(5))}


def fuzz(client: TestClient, seconds: float) -> None:
    seed = random.randrange(1 << 30)
    chance, until = random.Random(seed), time.monotonic() + seconds
    token = asked(client).json()["feedback_token"]
    while time.monotonic() < until:
        chosen: dict[str, Any] = chance.choice([{"parameters": dict(GOOD)}, {"token": token, "verdict": "down"}, {}])
        for _ in range(chance.randrange(1, 3)):
            place = chosen["parameters"] if "parameters" in chosen and chance.random() < 0.6 else chosen
            if isinstance(place, dict):
                place[chance.choice(KEYS)] = value(chance)
        content = json.dumps(chosen if chance.random() < 0.9 else value(chance)).encode()
        if chance.random() < 0.2 and content:
            at = chance.randrange(len(content))
            content = content[:at] + (chance.randbytes(1) + content[at + 1 :] if chance.random() < 0.5 else b"")
        path = chance.choice(PATHS)
        answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code < 500 or answer.status_code in (503, 504), (seed, path, content, answer.text)
        if answer.is_error:
            assert "\n" not in answer.json()["error"] and len(answer.json()["error"]) <= 400, (seed, path, content)


def test_random_bodies_for_a_moment(client: TestClient) -> None:
    fuzz(client, 3.0)


@pytest.mark.nightly
def test_random_bodies_at_length(client: TestClient) -> None:
    fuzz(client, SECONDS)
