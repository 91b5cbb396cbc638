"""`--pipeline ask` against a service with a scripted policy over real HTTP. Real models answer in `test_deployment`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import ask, running_service
from steps.artifact_names import MAIL_DATABASE
from steps.data import create_database
from steps.model_registry import StoredCheckpoint, find_mail_database
from tests.fakes.policy import MailPolicy
from tests.front_door import FrontDoor
from tests.ports import free_port
from tests.serving.scripted_service import ANN, BO, GOOD, scripted_app, served
from tests.serving.service_client import ANNS_KEY, KEYS, OWNER_KEY
from training.record.experiment import MAIL_TASK

pytestmark = pytest.mark.service

QUESTION = GOOD["question"]
ASK = ["--pipeline", "ask", "--name", "here", "--date", GOOD["query_date"]]


@pytest.fixture(scope="module")
def policy() -> Iterator[MailPolicy]:
    with MailPolicy() as server:
        yield server


@pytest.fixture(scope="module")
def url(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    app = scripted_app(policy, tmp_path_factory.mktemp("service"), key=OWNER_KEY, keys=KEYS)
    with served(app) as address:
        yield address


@pytest.fixture
def deployment() -> SimpleNamespace:
    return SimpleNamespace(url=None, auth_key=OWNER_KEY)


@pytest.fixture
def door(
    policy: MailPolicy, url: str, deployment: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FrontDoor:
    """ZenML knows one deployment, `here`."""
    policy.calm()
    deployment.url = url
    monkeypatch.delenv(running_service.KEY, raising=False)
    monkeypatch.setattr(
        running_service, "Client", lambda: SimpleNamespace(get_deployment={"here": deployment}.__getitem__)
    )
    return FrontDoor(tmp_path / "door", monkeypatch)


def test_the_answer_with_the_words_that_prove_it(door: FrontDoor) -> None:
    done = door.run(*ASK, "--inbox", ANN, *QUESTION.split())
    assert done.returncode == 0, done.stderr
    answer, *rest = done.stdout.splitlines()
    assert answer == "room 4B"
    assert f"  2024-03-01  {BO}  Budget review" in rest
    assert any("takes place in [room 4B], on 5 March" in line for line in rest)
    assert "search" not in done.stdout


def test_steps(door: FrontDoor) -> None:
    done = door.run(*ASK, "--inbox", ANN, "--steps", QUESTION)
    search, read, _, _, answer, *_ = done.stdout.splitlines()
    assert search == " 1 search budget review, 1 found" and read == " 2 read" and answer == "room 4B"


def test_json(door: FrontDoor) -> None:
    done = door.run(*ASK, "--inbox", ANN, "--json", "--steps", QUESTION)
    answer = json.loads(done.stdout)
    assert answer["answer"] == "room 4B" and answer["proven"] and answer["success"]
    assert [source["message_id"] for source in answer["sources"]] == ["<review@kestrel.example>"]


def test_a_mail_gives_the_terminal_no_orders(door: FrontDoor, policy: MailPolicy) -> None:
    policy.answer = "room 4B\x1b]0;owned\x07\x9b2J\rroom 9"
    done = door.run(*ASK, "--inbox", ANN, QUESTION)
    assert done.returncode == 0 and "room 4B" in done.stdout
    assert not set("\x1b\x07\x9b\r") & set(done.stdout)


def test_an_answer_that_no_mail_proves_and_none_at_all(door: FrontDoor, policy: MailPolicy) -> None:
    policy.answer = "the lighthouse"
    assert "No cited mail has these words" in door.run(*ASK, "--inbox", ANN, QUESTION).stdout
    policy.silent = True
    assert "gave up" in door.run(*ASK, "--inbox", ANN, QUESTION).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (ASK, "needs a question"),
        ([*ASK, "--unpromoted", QUESTION], "leave out --checkpoint, --unpromoted and --mail"),
        ([*ASK, "--mail", "latest", QUESTION], "leave out --checkpoint, --unpromoted and --mail"),
        (["--pipeline", "ask", "--name", "absent", QUESTION], "there is no service 'absent'"),
        ([*ASK, QUESTION], "--inbox ADDRESS is needed, for there are 3 inboxes, such as bo@kestrel.example"),
        ([*ASK, "--inbox", "nobody@kestrel.example", QUESTION], "unknown inbox"),
        ([*ASK, "--inbox", "bob@kestrel.example", QUESTION], "did you mean bo@kestrel.example?"),
        ([*ASK, "--inbox", ANN, "--date", "yesterday", QUESTION], "query_date"),
        ([*ASK, "--inbox", ANN, "--date", "", QUESTION], "query_date"),
        ([*ASK, "--inbox", ANN, " "], "question: is empty"),
        ([*ASK, "--inbox", ANN, "x" * 4001], "question: has 4,001 characters"),
        (["--pipeline", "ask", QUESTION], "there is no trained checkpoint yet: run"),
    ],
)
def test_bad_input(door: FrontDoor, words: list[str], said: str) -> None:
    if "--name" not in words:  # nothing is trained in the store of the tests
        door.monkeypatch.setattr("steps.model_registry.production_version", lambda *_: None)
        door.monkeypatch.setattr("steps.model_registry.Client.list_model_versions", lambda *_, **__: [])
    assert said in door.refuses(*words)


def test_the_key_of_the_environment(
    door: FrontDoor, deployment: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZenML knows the owner's key only, and none of a service that has a file of keys alone."""
    deployment.auth_key = None
    assert "a key is needed" in door.refuses(*ASK, "--inbox", ANN, QUESTION)
    monkeypatch.setenv(running_service.KEY, ANNS_KEY)
    assert door.run(*ASK, QUESTION).stdout.startswith("room 4B\n"), "her key is for one inbox"
    monkeypatch.setenv(running_service.KEY, "schlüssel")
    assert "EMAIL_AGENT_KEY: has characters other than printable ASCII" in door.refuses(*ASK, "--inbox", ANN, QUESTION)


def test_the_key_of_a_local_service_goes_through_no_proxy(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    done = door.run(*ASK, "--inbox", ANN, QUESTION)
    assert done.returncode == 0, done.stderr


def test_a_wrong_key_and_a_service_that_is_gone(door: FrontDoor, deployment: SimpleNamespace) -> None:
    deployment.auth_key = "not one of its keys"
    assert "this key is not known" in door.refuses(*ASK, "--inbox", ANN, QUESTION)
    deployment.url = f"http://127.0.0.1:{free_port()}"
    done = door.run(*ASK, "--inbox", ANN, QUESTION)
    assert done.returncode == 1 and "here does not answer at http://127.0.0.1" in done.stderr
    assert done.stderr.count("\n") == 1
    deployment.url = None
    assert "here is not running" in door.refuses(*ASK, "--inbox", ANN, QUESTION)


def test_the_mail_that_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the training, or what `--pipeline data` reported last, also when it found everything in the cache."""
    monkeypatch.setattr(create_database, "DATA", tmp_path / "data")
    door = FrontDoor(tmp_path / "door", monkeypatch)
    databases = {}
    for name in ("first", "second", "first"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        mail = f"From: {name}@x.example\nTo: bo@x.example\nDate: Mon, 4 Mar 2024 10:00:00 +0000\nSubject: s\n\nHello {name}.\n"
        if not (folder / "1.eml").exists():
            (folder / "1.eml").write_text(mail)
        done = door.run("--pipeline", "data", "--set", f"emails={folder}")
        assert done.returncode == 0, done.stderr
        databases.setdefault(name, str(find_mail_database().id))
    assert "unchanged, reused" in done.stdout
    assert str(find_mail_database().id) == databases["first"] != databases["second"]

    def asked(
        trained_on: str,
        *words: str,
        inbox: str = "bob@x.example",
        task: str = MAIL_TASK,
        refusal: str = "unknown inbox",
    ) -> str:
        manifest = SimpleNamespace(data={MAIL_DATABASE: trained_on})
        stored = StoredCheckpoint(SimpleNamespace(manifest=manifest, task=task), "here", None)
        monkeypatch.setattr(ask, "find_checkpoint", lambda *_, **__: stored)
        done = door.run("--pipeline", "ask", "--checkpoint", "here", "--inbox", inbox, *words, "Where?")
        assert done.returncode == 2 and refusal in done.stderr
        assert ("--mail latest" in done.stderr) == ("--mail latest" in refusal)
        return done.stdout

    said = f"mail: what `--pipeline data` prepared last, not that of the training: 1 mails in 2 inboxes, source {tmp_path}/first\n"
    assert asked("00000000-0000-0000-0000-000000000001") == said
    assert asked(databases["second"]) == asked(databases["first"], "--mail", "latest") == ""
    assert asked(databases["second"], "--mail", "latest") == said
    assert asked(databases["second"], "--mail", "latest", "--json") == ""
    asked(databases["first"], task="coding", refusal="--checkpoint: it was trained with task=coding")
    asked(databases["second"], inbox="first@x.example", refusal="the mail that was prepared last has it: --mail latest")
