"""`--pipeline learn-loop --serve`: the service from the command line, with real loops of a tiny model."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import run
from commands import learn_loop, learn_loop_service
from commands.learn_loop import graph_lock, is_at_work, learn_loop_config, only_loop_on
from commands.learn_loop_service import API_KEY
from serving.learn_loop_runs import REQUEST
from tasks.outreach.events import EventStore
from tasks.outreach.results import STATE, write_json
from tests.checkout import Checkout, settings
from tests.ports import free_port
from training.errors import BadInput

KEY = "a-key-of-the-service"


@contextmanager
def serving(checkout: Checkout, words: list[str], port: int) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    process = checkout.start("--pipeline", "learn-loop", "--serve", *words, *settings(port=port))
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=300, trust_env=False) as client:
            until(lambda: process.poll() is not None or healthy(client))
            assert process.poll() is None, process.communicate()[0]
            yield process, client
    finally:
        process.terminate()
        process.communicate()


def healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health", headers={"Authorization": ""}).status_code == 200
    except httpx.TransportError:
        return False


def until(met: Callable[[], bool]) -> None:
    while not met():
        time.sleep(0.1)


def status(client: httpx.Client, run_id: str) -> dict[str, Any]:
    found = client.get(f"/learn-loop/{run_id}").json()
    assert found["state"] in ("queued", "running", "finished"), found
    return found


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.parametrize("sent", [50, pytest.param(500, marks=pytest.mark.nightly)])
def test_a_loop_runs_through_events_and_the_services_sigkill(
    sent: int, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [f"m{number}" for number in range(sent)]
    monkeypatch.setenv(API_KEY, KEY)
    checkout, port = Checkout.create(tmp_path), free_port()
    small = {"groups_per_step": 2, "rollouts_per_group": 2, "demonstrations": 4, "validation_questions": 2}
    small |= {"train_prospects": 6, "test_prospects": 2, "max_tokens": 16, "max_turns": 2, "max_context": 8192}
    words = settings(base_model=tiny_base, feedback="recorded", **small)
    loops = tmp_path / "outputs" / "learn_loop"
    with serving(checkout, words, port) as (service, client):
        assert client.post("/learn-loop", json={}, headers={"Authorization": ""}).status_code == 401
        started = client.post("/learn-loop", json={"max_steps": 2})
        assert started.status_code == 202, started.text
        run_id = started.json()["run_id"]
        assert Path(started.json()["results_path"]) == loops / run_id
        assert client.post("/learn-loop", json={}).status_code == 409

        store = EventStore(loops / "feedback.sqlite")
        store.add_messages("earlier", 1, [(message, "train-1", ["f1"]) for message in messages])
        events = [{"message_id": message, "event": event} for message in messages for event in ("opened", "replied")]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda event: client.post("/feedback", json=event), events * 2))
        assert status(client, run_id)["state"] == "running"
        assert {answer.status_code for answer in answers} == {201}
        assert sum(answer.json()["new"] for answer in answers) == 2 * sent
        until(lambda: bool(status(client, run_id)["metrics"]))
        service.kill()
        service.wait()
    with serving(checkout, words, port) as (_, client):
        until(lambda: status(client, run_id)["state"] == "finished")
        assert [row["iteration"] for row in status(client, run_id)["metrics"]] == [0, 1, 2]
        assert client.post("/feedback", json=events[0]).json() == {"new": False}
    assert store.rates_by_fact()["f1"] == (sent, sent, sent)
    evaluation = json.loads((loops / run_id / "evaluation.json").read_text())
    assert evaluation["prospects"] == 2 and not evaluation["expected"]
    assert "Feedback is recorded" in (loops / run_id / "page.html").read_text()


def test_a_loop_that_somebody_else_started_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn_loop, "LEARN_LOOPS", tmp_path)
    config = learn_loop_config(None, [])
    key = learn_loop.graph_key(config)
    assert not is_at_work(key)
    with only_loop_on(config):
        assert is_at_work(key)
        with pytest.raises(BadInput, match="add --wait"), only_loop_on(config):
            pass
    held = graph_lock(key)
    held.acquire()
    with ThreadPoolExecutor(1) as pool:

        def waits() -> bool:
            with only_loop_on(config, wait=True):
                return not held.is_locked

        waiting = pool.submit(waits)
        time.sleep(0.3)
        assert not waiting.done()
        held.release()
        assert waiting.result()


@pytest.mark.parametrize("option", ["--dry-run", "--no-cache", "--wait"])
def test_a_service_takes_no_options_of_a_run(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--pipeline", "learn-loop", "--serve", option])
    assert ended.value.code == 2 and "--serve starts a service" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (settings(address="0.0.0.0"), f"set {API_KEY}"),
        (settings(graph="nowhere.jsonl", prospects="nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (settings(access_keys="nowhere"), "nowhere"),
    ],
)
def test_a_service_that_cannot_serve_says_so_in_one_line(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(API_KEY, raising=False)
    assert run.main(["--pipeline", "learn-loop", "--serve", *words]) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1


def test_a_second_service_on_a_port_leaves_the_loops_of_the_first_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn_loop_service, "LEARN_LOOPS", tmp_path)
    monkeypatch.setattr(learn_loop_service, "EVENTS", tmp_path / "feedback.sqlite")
    records = {REQUEST: {"settings": {}, "graph": "g", "order": 1}, STATE: {"state": "running", "iteration": 2}}
    for name, content in records.items():
        write_json(tmp_path / "loop" / name, content)
    before = (tmp_path / "loop" / STATE).read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        assert run.main(["--pipeline", "learn-loop", "--serve", *settings(port=port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the service cannot listen: Address already in use") and said.count("\n") == 1
    assert str(port) in said
    assert (tmp_path / "loop" / STATE).read_bytes() == before


def test_a_damaged_record_of_events_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn_loop_service, "LEARN_LOOPS", tmp_path)
    monkeypatch.setattr(learn_loop_service, "EVENTS", tmp_path / "feedback.sqlite")
    (tmp_path / "feedback.sqlite").write_text("no database, but longer than the header of one " * 20)
    assert run.main(["--pipeline", "learn-loop", "--serve"]) == 2
    said = capsys.readouterr().err
    assert "feedback.sqlite is damaged (file is not a database)" in said and said.count("\n") == 1
