"""Requests to the service, and its keys."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from fastapi.testclient import TestClient

from tests.serving.scripted_service import ANN, GOOD

URL = "http://127.0.0.1"
OWNER_KEY = "the owner's key of this service"
ANNS_KEY = "ann's key, which sees her mail"
KEYS = [{"name": "ann", "sha256": hashlib.sha256(ANNS_KEY.encode()).hexdigest(), "inboxes": [ANN.upper()]}]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def asked(client: TestClient, **changes: Any) -> Any:
    return client.post("/invoke", json={"parameters": GOOD} | changes)


def events(client: TestClient, **headers: str) -> list[tuple[str, Any]]:
    """Return each event and its data, in order."""
    text = client.post("/stream", json={"parameters": GOOD}, headers=headers).text
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]
    return [(block["event"], json.loads(block["data"])) for block in blocks if "event" in block]


def waited(condition: Any) -> None:
    """Wait until `condition` holds: five minutes, for a busy machine."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
