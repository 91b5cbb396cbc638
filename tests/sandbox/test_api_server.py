"""Pods, with a stand-in for the API server: what it refuses, loses or says of a pod."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client as k8s

from sandbox.errors import NotStarted, Unusable
from sandbox.kubernetes_engine import REQUEST_SECONDS, KubernetesEngine, PodTemplate
from sandbox.limits import Limits

pytestmark = pytest.mark.service

POLICIES = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
PODS = "/api/v1/namespaces/default/pods"
SERVICE = {"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 443}]}}


class ApiServer(ThreadingHTTPServer):
    """Gives `answers` to requests of a method and a path: status and body, or None to hang up. Others succeed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answers: dict[tuple[str, str], tuple[int, Any] | None] = {}
        self.asked: list[tuple[str, str]] = []
        self.bodies: dict[tuple[str, str], Any] = {}


class Request(BaseHTTPRequestHandler):
    server: ApiServer

    def answer(self) -> None:
        asked = self.command, self.path.partition("?")[0]
        self.server.asked.append(asked)
        self.server.bodies[asked] = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        usual = (200, SERVICE) if asked[1].endswith("/services/kubernetes") else (200, {})
        found = self.server.answers.get(asked, usual)
        if found is None:
            self.close_connection = True
            return
        status, body = found
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    file = tmp_path / "config"
    cluster = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    users = [{"name": "a", "user": {"token": "a"}}]
    settings = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "a"}
    file.write_text(yaml.safe_dump(settings))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def opened() -> KubernetesEngine:
    return KubernetesEngine("here-8100", "default", PodTemplate(), start_seconds=10)


def start(engine: KubernetesEngine) -> None:
    engine.start("a:1", ["sh"], Limits(), name="pod", seconds=1)


def test_a_network_policy_of_the_same_name_is_replaced(server: ApiServer) -> None:
    server.answers["POST", POLICIES] = 409, {}
    opened()
    replaced = server.bodies["PUT", f"{POLICIES}/sandbox-workspace"]
    assert replaced["spec"]["policyTypes"] == ["Ingress", "Egress"] and not {"ingress", "egress"} & set(
        replaced["spec"]
    )
    server.answers["PUT", f"{POLICIES}/sandbox-workspace"] = 403, {}
    opened()  # somebody else's duty


WAITING = "rpc error: code = {} desc = failed to pull and unpack image: {}"


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            NotStarted,
            "the pod of a:1 was ended .Evicted: The node was low on resource: memory..",
        ),
        ({"phase": "Failed", "reason": "OutOfcpu"}, NotStarted, "the pod of a:1 was ended .OutOfcpu."),
        ({"phase": "Failed"}, Unusable, "its pod ended at once"),
        (WAITING.format("Unknown", "429 Too Many Requests"), NotStarted, "429 Too Many Requests"),
        (WAITING.format("NotFound", "a:1: not found"), Unusable, "a:1: not found"),
    ],
)
def test_only_an_image_that_is_at_fault_is_refused_for_good(
    server: ApiServer, status: Any, error: type[Exception], message: str
) -> None:
    engine = opened()
    if isinstance(status, str):
        state = {"waiting": {"reason": "ErrImagePull", "message": status}}
        container = {"image": "a:1", "imageID": "", "name": "a", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": "Pending", "containerStatuses": [container]}
    server.answers["GET", f"{PODS}/pod/status"] = 200, {"status": status}
    with pytest.raises(error, match=message):
        start(engine)
    assert server.asked[-1] == ("DELETE", f"{PODS}/pod")


def test_a_pod_whose_creation_was_not_confirmed_is_removed(server: ApiServer) -> None:
    engine = opened()
    server.answers["POST", PODS] = None
    with pytest.raises(NotStarted, match="no pod of a:1"):
        start(engine)
    assert server.asked[-2:] == [("POST", PODS), ("DELETE", f"{PODS}/pod")]


def test_every_request_has_a_timeout(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    call, timeouts = k8s.ApiClient.call_api, list[Any]()

    def counted(self: k8s.ApiClient, *words: Any, **named: Any) -> Any:
        timeouts.append(named.get("_request_timeout"))
        return call(self, *words, **named)

    monkeypatch.setattr(k8s.ApiClient, "call_api", counted)
    server.answers["POST", POLICIES] = 409, {}
    engine = opened()
    engine._start_seconds = 0.0
    server.answers["GET", f"{PODS}/pod/status"] = 200, {"status": {"phase": "Pending"}}
    pod = {"metadata": {"name": "pod"}, "spec": {"containers": [{"name": "a"}]}}
    server.answers["GET", PODS] = 200, {"items": [pod]}
    server.answers["GET", PODS.replace("pods", "events")] = 200, {"items": []}
    with pytest.raises(NotStarted, match="does not run after 0 s"):
        start(engine)
    assert engine.reap() == 1
    assert len(timeouts) == 9 and set(timeouts) == {REQUEST_SECONDS}
