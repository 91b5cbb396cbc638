"""The HTTP service of learn loops, with loops that are a small script."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from serving import learn_loop_runs
from serving.access import Keys, Origins
from serving.learn_loop_app import learn_loop_app
from serving.learn_loop_runs import LIFELINE, LearnLoopRuns
from tasks.outreach.events import EventStore
from tasks.outreach.results import STATE
from tests.serving.scripted_service import served
from training.errors import BadInput

pytestmark = pytest.mark.service

KEY = "a key of this service"
LOOP = """
import json, os, pathlib, signal, sys, time
state, release = pathlib.Path(sys.argv[1], "state.json"), pathlib.Path(sys.argv[2])
known = json.loads(state.read_text())

def save(**changes):
    beside = state.with_name("beside")
    beside.write_text(json.dumps(known | changes))
    os.replace(beside, state)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(save(state="failed") or 1))
while not release.exists():
    time.sleep(0.01)
if release.read_text() == "fail":
    save(state="failed")
    while release.with_name("hold").exists():
        time.sleep(0.01)
    sys.exit("error: the graph is gone")
save(state="finished", iteration=3)
"""


class Service:
    """A service whose loops wait for a file that lets them end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.release = folder / "release"
        self.store = EventStore(folder / "feedback.sqlite")

    def runs(self) -> LearnLoopRuns:
        def check(settings: Mapping[str, Any]) -> str:
            if settings.get("webhook_url", "").startswith("ftp"):
                raise BadInput("webhook_url: expected http")
            return f"graph {settings.get('graph_seed', 0)}"

        def command(run_id: str, settings: Mapping[str, Any]) -> list[str]:
            return [sys.executable, "-c", LOOP, str(self.folder / "loops" / run_id), str(self.release)]

        return LearnLoopRuns(self.folder / "loops", check, command)

    def app(self) -> SimpleNamespace:
        origins = Origins("127.0.0.1", (), open_to_any=True)
        return SimpleNamespace(asgi=learn_loop_app(self.runs(), self.store, keys=Keys(KEY, ()), origins=origins))


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    with client_of(service) as found:
        yield found


def client_of(service: Service) -> TestClient:
    return TestClient(service.app().asgi, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {KEY}"})


def wait_for(client: TestClient, run_id: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not wanted(found := client.get(f"/learn-loop/{run_id}").json()):
        assert found["state"] in ("queued", "running"), found
        time.sleep(0.02)
    return found


def start(client: TestClient, **body: Any) -> str:
    response = client.post("/learn-loop", json=body)
    assert response.status_code == 202, response.text
    assert Path(response.json()["results_path"]).is_dir()
    return response.json()["run_id"]


def test_a_loop_is_started_and_followed_to_its_end(client: TestClient, service: Service) -> None:
    run_id = start(client)
    assert wait_for(client, run_id, lambda found: found["state"] == "running")["iteration"] == 0
    service.release.write_text("")
    assert wait_for(client, run_id, lambda found: found["state"] == "finished")["iteration"] == 3


def test_one_loop_at_a_time_per_graph(client: TestClient, service: Service) -> None:
    first = start(client)
    refused = client.post("/learn-loop", json={})
    assert refused.status_code == 409 and first in refused.json()["error"]
    other_graph, second = start(client, graph_seed=1), start(client, wait=True)
    wait_for(client, other_graph, lambda found: found["state"] == "running")
    assert client.get(f"/learn-loop/{second}").json()["state"] == "queued"
    assert client.post(f"/learn-loop/{first}/cancel", json={}).json()["state"] == "cancelled"
    wait_for(client, second, lambda found: found["state"] == "running")
    assert client.get(f"/learn-loop/{first}").json()["state"] == "cancelled"
    service.release.write_text("fail")
    assert wait_for(client, second, lambda found: found["state"] == "failed")["error"] == "error: the graph is gone"


def test_a_loop_that_ends_while_its_records_are_read_has_not_failed_without_an_error(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, hold, read_text = service.runs(), service.folder / "hold", Path.read_text
    hold.touch()
    run_id = runs.submit({}, wait=False)
    service.release.write_text("fail")
    state_file = service.folder / "loops" / run_id / STATE
    while json.loads(read_text(state_file))["state"] != "failed":
        time.sleep(0.02)

    def read_before_the_end(file: Path, *args: Any, **kwargs: Any) -> str:
        text = read_text(file, *args, **kwargs)
        if file == state_file and hold.exists() and threading.current_thread() is threading.main_thread():
            hold.unlink()
            next(thread for thread in threading.enumerate() if thread.name == f"loop-{run_id}").join()
        return text

    monkeypatch.setattr(Path, "read_text", read_before_the_end)
    at_the_end = runs.status(run_id)
    assert (at_the_end["state"], at_the_end["error"]) == ("running", None)
    assert runs.status(run_id)["error"] == "error: the graph is gone"


def test_a_loop_on_the_graph_that_another_program_started_counts(service: Service) -> None:
    busy = {"graph 0"}
    runs = LearnLoopRuns(service.folder / "loops", lambda settings: "graph 0", lambda *_: ["true"], busy.__contains__)
    with pytest.raises(BadInput, match="another learn loop works on this graph"):
        runs.submit({}, wait=False)
    assert not list((service.folder / "loops").iterdir())
    assert runs.submit({}, wait=True)
    runs.close()


def test_few_loops_train_at_once_and_the_others_wait(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn_loop_runs, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(learn_loop_runs, "MOST_WAITING", 1)
    first, second, third = (start(client, graph_seed=seed) for seed in (1, 2, 3))
    for run_id in (first, second):
        wait_for(client, run_id, lambda found: found["state"] == "running")
    assert client.get(f"/learn-loop/{third}").json()["state"] == "queued"
    refused = client.post("/learn-loop", json={"graph_seed": 4})
    assert refused.status_code == 429 and "1 learn loops wait already" in refused.json()["error"]
    client.post(f"/learn-loop/{first}/cancel", json={})
    wait_for(client, third, lambda found: found["state"] == "running")


def test_a_loop_of_the_command_line_is_stopped_there(client: TestClient, service: Service) -> None:
    folder = service.folder / "loops" / "mine"
    folder.mkdir()
    state = {"state": "running", "iteration": 2, "iterations": 7, "error": None, "undelivered": []}
    (folder / "state.json").write_text(json.dumps(state))
    refused = client.post("/learn-loop/mine/cancel", json={})
    assert refused.status_code == 409 and "was started on the command line" in refused.json()["error"]
    assert client.get("/learn-loop/mine").json()["state"] == "running" and len(list(folder.iterdir())) == 1


def test_loops_go_on_when_the_service_comes_back(service: Service) -> None:
    with client_of(service) as client:
        running, waiting = start(client), start(client, wait=True)
        wait_for(client, running, lambda found: found["state"] == "running")
    with client_of(service) as client:
        wait_for(client, running, lambda found: found["state"] == "running")
        assert client.get(f"/learn-loop/{waiting}").json()["state"] == "queued"
        service.release.write_text("")
        for run_id in (running, waiting):
            wait_for(client, run_id, lambda found: found["state"] == "finished")


def test_a_loop_ends_with_the_service_however_that_ends(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}")
    command = [sys.executable, str(LIFELINE), sys.executable, "-c", LOOP, str(tmp_path), str(tmp_path / "never")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(0.2)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait() != 0


def test_feedback_counts_once(client: TestClient, service: Service) -> None:
    service.store.add_messages("run", 1, [("m1", "train-1", ["f1"])])
    answers = [client.post("/feedback", json={"message_id": "m1", "event": "replied"}) for _ in range(3)]
    assert [(answer.status_code, answer.json()["new"]) for answer in answers] == [
        (201, True),
        (201, False),
        (201, False),
    ]
    assert service.store.rates_by_fact() == {"f1": (1, 0, 1)}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/feedback", {"message_id": "unknown", "event": "replied"}, 404),
        ("POST", "/feedback", {"message_id": "m1", "event": "loved"}, 422),
        ("POST", "/learn-loop", {"webhook_url": "ftp://example.com"}, 422),
        ("POST", "/learn-loop", {"reward_function": "os:system"}, 422),
        ("POST", "/learn-loop", {"max_steps": 0}, 422),
        ("GET", "/learn-loop/unknown", None, 404),
        ("GET", "/learn-loop/..%2Fsecret", None, 404),
        ("GET", "/learn-loop/.hidden", None, 422),
        ("POST", "/learn-loop/unknown/cancel", {}, 404),
        ("POST", "/learn-loop/unknown/cancel", None, 404),
        ("POST", "/learn-loop/", {}, 404),
    ],
)
def test_bad_requests_get_one_line(
    client: TestClient, service: Service, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    response = client.request(method, path, json=body)
    assert response.status_code == status
    assert response.json()["success"] is False and "\n" not in response.json()["error"]
    assert not list((service.folder / "loops").iterdir())


def test_a_file_among_the_loops_is_no_loop(client: TestClient, service: Service) -> None:
    (service.folder / "loops" / "feedback.sqlite").touch()
    assert client.get("/learn-loop/feedback.sqlite").status_code == 404
    assert client.post("/learn-loop/feedback.sqlite/cancel").status_code == 404


def test_a_key_is_needed(client: TestClient) -> None:
    for path in ("/learn-loop", "/feedback"):
        assert client.post(path, json={}, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/health", headers={"Authorization": ""}).status_code == 200


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = Service(tmp_path_factory.mktemp("contract"))
    found.release.write_text("")
    with served(found.app()) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/learn-loop", "POST"),
        ("/learn-loop/{run_id}", "GET"),
        ("/learn-loop/{run_id}/cancel", "POST"),
        ("/feedback", "POST"),
    ],
)
def test_every_operation_does_what_is_documented(api: Any, path: str, method: str, mode: GenerationMode) -> None:
    @hypothesis_settings(
        max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(case=api[path][method].as_strategy(mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(
            timeout=300, headers={"Authorization": f"Bearer {KEY}"}, excluded_checks=[positive_data_acceptance]
        )

    check()
