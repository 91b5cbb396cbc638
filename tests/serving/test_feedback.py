"""Ratings of answers."""

from __future__ import annotations

import resource
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from environment.feedback import rating_files
from serving.app import ServiceApp
from serving.bodies import Answer, Feedback, Question
from serving.feedback import FeedbackQueue, TokenRefused
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import GOOD, scripted_app
from tests.serving.service_client import ANNS_KEY, OWNER_KEY, URL, asked, bearer

pytestmark = pytest.mark.usefixtures("calm")


def test_feedback_is_stored_once_for_a_person_to_review(client: TestClient, app: ServiceApp) -> None:
    reply = asked(client).json()
    rating = {"token": reply["feedback_token"], "verdict": "down", "comment": "no: {x}", "correct_answer": "room 5"}
    assert client.post("/feedback", json=rating).status_code == 201
    assert client.post("/feedback", json=rating).status_code == 409
    file = app.settings.feedback_folder / f"{reply['metadata']['request_id']}.yaml"
    stored = yaml.safe_load(file.read_text())
    assert stored["review"] == "pending" and stored["answer"] == "room 5" and stored["answered"] == "room 4B"
    assert {key: stored[key] for key in GOOD} == GOOD and stored["message_ids"] == ["<review@kestrel.example>"]


@pytest.mark.parametrize(
    "change", [lambda t: t[:-2] + "xx", lambda t: "", lambda t: "é" * 50, lambda t: t.split(".")[0]]
)
def test_forged_tokens_are_refused(client: TestClient, change: Any) -> None:
    token = asked(client).json()["feedback_token"]
    response = client.post("/feedback", json={"token": change(token), "verdict": "up"})
    assert response.status_code == 403


def test_a_token_is_good_for_the_key_that_asked(closed: TestClient) -> None:
    token = closed.post("/invoke", json={"parameters": GOOD}, headers=bearer(OWNER_KEY)).json()["feedback_token"]
    assert closed.post("/feedback", json={"token": token, "verdict": "up"}, headers=bearer(ANNS_KEY)).status_code == 403
    assert (
        closed.post("/feedback", json={"token": token, "verdict": "up"}, headers=bearer(OWNER_KEY)).status_code == 201
    )


def rating_of(queue: FeedbackQueue) -> Feedback:
    answer = Answer(
        question="?", answer="room 4B", source_ids=[], success=True, outcome="answered", turns=3, seconds=1.0
    )
    return Feedback(token=queue.token("id", "ann", Question.model_validate(GOOD), answer), verdict="up")


def test_tokens_survive_a_restart_and_are_signed_with_a_random_key(tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    rating = rating_of(FeedbackQueue(folder))
    (key,) = folder.iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(TokenRefused):
        FeedbackQueue(tmp_path / "of another service").add(rating, "ann")
    assert FeedbackQueue(folder).add(rating, "ann").is_file()
    assert [file.name for file in rating_files(folder)] == ["id.yaml"]


def test_a_service_whose_feedback_folder_cannot_be_made_still_answers(tmp_path: Path, policy: MailPolicy) -> None:
    (tmp_path / "feedback").write_text("a file")
    with TestClient(scripted_app(policy, tmp_path).asgi, base_url=URL) as http:
        token = asked(http).json()["feedback_token"]
        assert http.post("/feedback", json={"token": token, "verdict": "up"}).status_code == 503


def test_a_rating_that_cannot_be_written_may_be_sent_again(tmp_path: Path) -> None:
    queue = FeedbackQueue(tmp_path)
    rating = rating_of(queue)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError):
            queue.add(rating, "ann")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not rating_files(tmp_path)
    assert queue.add(rating, "ann").is_file()


def test_a_rating_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FeedbackQueue(tmp_path)
    seen: list[list[Path]] = []

    def interrupted(draft: Path, file: Path) -> None:
        seen.append(rating_files(tmp_path))
        raise KeyboardInterrupt

    monkeypatch.setattr("serving.feedback.os.link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.add(rating_of(queue), "ann")
    assert seen == [[]] and len(list(tmp_path.iterdir())) == 1, "the key alone"
