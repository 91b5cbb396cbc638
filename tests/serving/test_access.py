"""Which hosts, origins and keys the service answers, and what each key sees."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from zenml.deployers.server.fastapi.app import FastAPIDeploymentAppRunner

from serving.access import Origins
from serving.runner import ServiceRunner
from serving.settings import ServingSettings
from tests.serving.scripted_service import ANN, BO, GOOD
from tests.serving.service_client import ANNS_KEY, OWNER_KEY, URL, bearer

pytestmark = pytest.mark.usefixtures("calm")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_only_json_is_accepted(client: TestClient, kind: str) -> None:
    response = client.post("/invoke", content=json.dumps({"parameters": GOOD}), headers={"Content-Type": kind})
    assert response.status_code == 415


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "file://", "http://[", "http://127.0.0.1.evil.example"],
)
@pytest.mark.parametrize("path", ["/invoke", "/inboxes"])
def test_pages_of_other_origins_get_nothing(client: TestClient, path: str, origin: str) -> None:
    body = {"json": {"parameters": GOOD}} if path == "/invoke" else {}
    response = client.request("POST" if body else "GET", path, headers={"Origin": origin}, **body)
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert client.get("/inboxes", headers={"Origin": URL}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.1:8080", "[::1"])
def test_other_names_of_the_service_are_not_known(client: TestClient, host: str) -> None:
    assert client.get("/inboxes", headers={"Host": host}).status_code == 421
    assert client.get("/health", headers={"Host": host}).status_code == 200, "probes use the pod's address"
    assert client.get("/inboxes", headers={"Host": "localhost:8080"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("agent.example:8443", True),
        ("AGENT.example.:8443", True),
        ("agent.example", False),
        ("agent.example:80", False),
        ("mail.example", True),
        ("mail.example:9", True),
        ("[2001:db8::1]:5", True),
        ("localhost:7", True),
        ("evil.example:8443", False),
        ("agent.example:8443@evil.example", False),
        ("agent.example:port", False),
    ],
)
def test_an_allowed_host_with_a_port_is_known_at_that_port(host: str, known: bool) -> None:
    origins = Origins("10.0.0.1", ["Agent.example:8443", "mail.example", "2001:db8::1"], open_to_any=True)
    assert origins.known(host) is known


@pytest.mark.parametrize("host", ["https://agent.example", "agent.example/path", "", "a b", "[::1", "agent.example:x"])
def test_an_allowed_host_is_a_host_name(host: str) -> None:
    with pytest.raises(ValueError, match=r"agent\.example:8443"):
        ServingSettings(allowed_hosts=(host,))


@pytest.mark.parametrize(
    "path", ["/invoke", "/stream", "/submit", "/feedback", "/answers/x", "/inboxes", "/model", "/metrics"]
)
@pytest.mark.parametrize("headers", [{}, bearer("wrong"), bearer("ä"), {"Authorization": f"Basic {OWNER_KEY}"}])
def test_without_a_key_every_route_is_refused(closed: TestClient, path: str, headers: dict[str, str]) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    if path in ("/invoke", "/stream", "/submit", "/feedback"):
        body = {"parameters": GOOD} if path != "/feedback" else {"token": "x", "verdict": "up"}
        response = closed.post(path, json=body, headers=encoded)
    else:
        response = closed.get(path, headers=encoded)
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"


def test_a_key_sees_its_inboxes_only(closed: TestClient) -> None:
    anns, owners = bearer(ANNS_KEY), bearer(OWNER_KEY)
    assert closed.post("/invoke", json={"parameters": GOOD}, headers=anns).json()["answer"] == "room 4B"
    bos = GOOD | {"inbox_address": BO}
    assert closed.post("/invoke", json={"parameters": bos}, headers=owners).status_code == 200
    for path in ("/invoke", "/stream", "/submit"):
        hidden = closed.post(path, json={"parameters": bos}, headers=anns)
        unknown = closed.post(path, json={"parameters": GOOD | {"inbox_address": "no@no.example"}}, headers=anns)
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.json()["error"] == unknown.json()["error"], "whether an address exists is not told"
    assert closed.get("/inboxes", headers=anns).json() == {"inboxes": [ANN], "total": 1}
    assert set(closed.get("/inboxes", headers=owners).json()["inboxes"]) > {ANN, BO}
    assert closed.get(f"/examples?inbox={BO}", headers=anns).status_code == 404
    assert closed.get(f"/examples?inbox={ANN}", headers=anns).json()["examples"] == [GOOD]
    assert closed.get("/model", headers=anns | {"Host": "agent.example"}).status_code == 200, (
        "with a key any name will do"
    )


@pytest.mark.parametrize(
    ("serving", "said"),
    [
        ({"max_wating": 3}, "serving.max_wating: Extra inputs are not permitted"),
        ({"timeout": 0}, "serving.timeout: Input should be greater than or equal to 1"),
        ({"keys": [{"name": "ann"}]}, "serving.keys.0.sha256: Field required"),
        (
            {"keys": [{"name": "ann", "sha256": "0" * 64}], "keys_file": "f"},
            "serving: keys and keys_file: set one of both",
        ),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, serving: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(FastAPIDeploymentAppRunner, "__init__", lambda *_: None)
    deployment: Any = SimpleNamespace()
    with pytest.raises(SystemExit) as refused:
        ServiceRunner(deployment, serving)
    assert refused.value.code == f"BadInput: {said}"
