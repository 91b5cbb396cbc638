"""The two benchmarks of the service, small: against the scripted service, and against replies that they must object to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import service_attack, service_load
from benchmarks.deployed_service import Reply, Service
from environment.email_db import MailDatabase
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import ANN, BO, GOOD, scripted_app, served

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def running(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, MailDatabase]]:
    folder = tmp_path_factory.mktemp("service")
    with served(scripted_app(policy, folder, max_waiting=1, max_wait=300)) as url:
        yield Service(url), MailDatabase(folder / "mails.sqlite")


def test_the_load_counts_answers_and_refusals(
    running: tuple[Service, MailDatabase], policy: MailPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_load, "HEALTH_LIMIT_SECONDS", 300.0)  # callers and service share this process
    policy.calm()
    policy.seconds = 0.05
    figures = service_load.load(running[0], callers=6, minutes=0.05, seed=0)
    assert figures["ok"] and figures["answered"] > 0 and figures["statuses"]["503"] > 0
    assert (figures["lost"], figures["mixed_up"], figures["questions_with_differing_answers"]) == (0, 0, 0)
    assert figures["proven"] == figures["success"] == figures["answered"] == figures["statuses"]["200"]
    assert figures["p50_seconds_with_refusals"] >= figures["p50_seconds"] > 0 and figures["health_requests"] > 0


def test_the_load_objects_to_failed_answers(running: tuple[Service, MailDatabase], policy: MailPolicy) -> None:
    policy.calm()
    policy.status = 400
    figures = service_load.load(running[0], callers=1, minutes=0.01, seed=0)
    assert not figures["ok"] and set(figures["statuses"]) == {"500"} and figures["lost"] > 0


def test_the_load_objects_to_an_answer_to_another_question() -> None:
    tally = service_load.Tally(asked=1)
    other = GOOD | {"question": "Where is lunch?"}
    metadata = {"request_id": "1", "parameters_used": other, "episode": {"seconds": 1.0, "queued_seconds": 0.0}}
    reply = {"question": other["question"], "answer": "x", "source_ids": [], "proven": True, "success": True}
    service_load.count_answer(tally, GOOD, reply | {"metadata": metadata}, 1.0, 1.0)
    assert service_load.summary(tally, 1, 60)["mixed_up"] == 1 and not service_load.summary(tally, 1, 60)["ok"]


def attacked(running: tuple[Service, MailDatabase], **changes: int) -> dict[str, Any]:
    options = {"requests": 120, "questions": 12, "connections": 30, "kills": False, "seed": 0} | changes
    return service_attack.attack(*running, argparse.Namespace(**options))


def test_the_attack_finds_nothing(running: tuple[Service, MailDatabase], policy: MailPolicy) -> None:
    policy.calm()
    figures = attacked(running)
    assert figures["ok"], figures
    assert sum(figures["request_statuses"].values()) == 120 and set(figures["question_statuses"]) == {"200", "422"}
    assert figures["successes"] > 0 and figures["shown_mails"] >= figures["successes"]
    assert {kind["health"] for kind in figures["held_connections"].values()} == {200}


def test_the_attack_objects_to_failed_answers(running: tuple[Service, MailDatabase], policy: MailPolicy) -> None:
    policy.calm()
    policy.status = 400
    figures = attacked(running, requests=0, questions=3)
    assert figures["server_errors"] == 3 and not figures["ok"], "at once, in a stream, and in the background"


def test_mail_of_others_is_found_in_every_kind_of_reply(running: tuple[Service, MailDatabase]) -> None:
    lunch = {"message_id": "<lunch@kestrel.example>"}
    answer = {"success": True, "sources": [lunch]}
    replies = {
        "/invoke": json.dumps(answer),
        "/submit": json.dumps({"status": "done", "reply": answer}),
        "/stream": f"event: answer\ndata: {json.dumps(answer)}\n\n",
        "only read": f': ping\n\nevent: source\ndata: {json.dumps(lunch)}\n\nevent: error\ndata: {{"success": false}}\n\n',
    }
    for way, content in replies.items():
        reply = Reply(200, content.encode())
        assert service_attack.foreign_mails(reply, ANN, running[1]) == 1, way
        assert service_attack.foreign_mails(reply, BO, running[1]) == 0, way
        assert service_attack.succeeded(reply) is (way != "only read")
    unknown = Reply(200, json.dumps({"sources": [{"message_id": "<no@no.example>"}]}).encode())
    assert service_attack.foreign_mails(unknown, ANN, running[1]) == 1
