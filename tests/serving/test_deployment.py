"""Real deployments on ZenML's local stack, by a user's commands in a fresh clone. The model is tiny and random: it never answers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest

from benchmarks import service_load
from environment.email_db import MailDatabase
from tests import standstill
from tests.checkout import fresh_clone, user_environment
from tests.ports import free_port

PIPELINE = "pipelines.inference.inference_pipeline"
STORE = """
import sys
from pathlib import Path
from zenml import Model, save_artifact
from zenml.client import Client
from zenml.model.utils import link_artifact_to_model
from datetime import datetime
from environment.email_db import MailDatabase
from environment.models import Scenario
from materializers.checkpoint import CheckpointMaterializer
from materializers.mail_database import MailDatabaseMaterializer
from steps.artifact_names import CHECKPOINT, MAIL_DATABASE, MODEL_NAME, SCENARIOS
from training.checkpoint import Checkpoint

folder = Path(sys.argv[1])
mails = MailDatabase(folder / "mails.sqlite")
asked = Scenario(id="1", question="Where?", inbox_address=mails.inboxes()[0], query_date=datetime(2035, 1, 1), split="test")
scenarios = save_artifact([asked], SCENARIOS)
tiny = Checkpoint.load(folder / "tiny")
trained_on = tiny.manifest.model_copy(update={"data": {SCENARIOS: str(scenarios.id)}})
Checkpoint(tiny.path, trained_on).save(folder / "tiny-with-questions")
checkpoint = save_artifact(tiny, CHECKPOINT, materializer=CheckpointMaterializer)
database = save_artifact(mails, MAIL_DATABASE, materializer=MailDatabaseMaterializer)
Client().create_model(MODEL_NAME)
version = Client().create_model_version(MODEL_NAME)
for artifact in (checkpoint, database):
    link_artifact_to_model(artifact, Model(name=MODEL_NAME, version=version.name))
version.set_stage("production")
"""
DEPLOY = """
import json, sys
from environment.errors import BadMail
from commands.deploy import deploy_inference
from training.errors import BadInput

try:
    print(deploy_inference(sys.argv[1], **json.loads(sys.argv[2])))
except (BadInput, BadMail) as error:
    print(error)
    sys.exit(2)
"""

pytestmark = [pytest.mark.service, pytest.mark.slow]


@dataclass
class Place:
    """A fresh clone and a ZenML configuration with a stored checkpoint, and the mailbox to ask."""

    folder: Path
    environment: dict[str, str]
    inbox: str
    other: str
    base: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return standstill.run(list(command), cwd=self.folder, env=self.environment)

    def zenml(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(Path(sys.executable).with_name("zenml")), *arguments)

    def python(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # From a file next to run.py, whose folder is then ZenML's source root.
        (self.folder / "code.py").write_text(code)
        return self.run(sys.executable, "code.py", *arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_store: Path, inbox: str) -> Iterator[Place]:
    folder = fresh_clone(tmp_path_factory.mktemp("clone") / "mit Leerzeichen und Umläuten")
    environment = user_environment(tmp_path_factory.mktemp("zenml"))
    other = MailDatabase(tiny_store / "mails.sqlite").inboxes()[1]
    place = Place(folder, environment, inbox, other, tiny_store / "base")
    missing = place.python(DEPLOY, "agent", "{}")
    assert missing.returncode == 2, missing.stderr
    assert missing.stdout.splitlines()[-1].startswith("there is no trained checkpoint yet")
    stored = place.python(STORE, str(tiny_store))
    assert stored.returncode == 0, stored.stderr
    yield place
    for name in ("by-code", "killed"):
        place.zenml("deployment", "delete", name, "--yes")


def ask(url: str, key: str = "", host: str = "", **parameters: str) -> tuple[int, dict[str, object]]:
    body = json.dumps({"parameters": parameters}).encode()
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    request = Request(f"{url}/invoke", data=body, headers=headers | ({"Host": host} if host else {}))
    try:
        with urlopen(request, timeout=600) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


OWNER_KEY = "the owner's key of both services"
KEY = "a key that may ask about one inbox"


def test_both_commands_deploy_the_same_service(place: Place, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"- {{name: ann, key: {KEY}, inboxes: ['{place.inbox}']}}\n")
    by_zenml, by_run = tmp_path / "zenml.yaml", tmp_path / "run.yaml"
    serving = {
        "keys_file": str(keys),
        "allowed_hosts": ["agent.example"],
        "timeout": 200,
        "feedback_folder": str(tmp_path),
    }
    deployment = {"deployment_app_runner_kwargs": {"serving": serving}}
    # ZenML takes the first free port, and a deployment that starts at the same time may take the same one.
    ports = {"by-command": free_port(), "by-code": free_port()}
    deployers = {name: {"auth_key": OWNER_KEY, "port": port} for name, port in ports.items()}
    by_zenml.write_text(json.dumps({"settings": {"deployer": deployers["by-command"], "deployment": deployment}}))
    same = {"access_keys": str(keys), "allowed_hosts": ["agent.example"], "question_timeout": 200}
    by_run.write_text(
        json.dumps(same | {"feedback_folder": str(tmp_path), "settings": {"deployer": deployers["by-code"]}})
    )
    as_command = ("pipeline", "deploy", PIPELINE, "--name", "by-command", "--config", str(by_zenml))
    by_command = place.zenml(*as_command)
    assert by_command.returncode == 0, by_command.stdout + by_command.stderr
    by_code = place.run(sys.executable, "run.py", "--pipeline", "deploy", "--name", "by-code", "--config", str(by_run))
    assert by_code.returncode == 0, by_code.stdout + by_code.stderr

    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    assert f"{urls['by-code']}/invoke" in by_code.stdout

    good = {"question": "Where is it?", "inbox_address": place.inbox, "query_date": "2035-01-01"}
    other = good | {"inbox_address": place.other}
    loads = set()
    for url in urls.values():
        answers = [ask(url, KEY, **good) for _ in range(10)]
        assert {status for status, _ in answers} == {200}
        assert all(answer["question"] == good["question"] and "source_ids" in answer for _, answer in answers)
        of_this_service = {answer["metadata"]["model"]["load_id"] for _, answer in answers}
        assert len(of_this_service) == 1
        loads |= of_this_service
        assert ask(url, KEY, **good | {"question": ""})[0] == 422
        assert [ask(url, key, **other)[0] for key in ("", "not one of its keys", KEY, OWNER_KEY)] == [
            401,
            401,
            404,
            200,
        ]
        assert ask(url, OWNER_KEY, **good | {"inbox_address": "nobody@nowhere.example"})[0] == 404
        hosts = ("agent.example", "agent.example:9", "localhost", "evil.example")
        assert [ask(url, KEY, host, **good)[0] for host in hosts] == [200, 200, 200, 421]
    assert len(loads) == 2

    described = place.zenml("deployment", "describe", "by-command")
    assert urls["by-command"] in described.stdout + described.stderr
    log = place.zenml("deployment", "logs", "by-command")
    assert '"event": "request"' in log.stdout + log.stderr, "the access log is there however quiet ZenML is"
    assert good["question"] not in log.stdout + log.stderr and place.inbox not in log.stdout + log.stderr
    with urlopen(f"{urls['by-command']}/openapi.json", timeout=300) as response:
        documented = json.load(response)
    assert "Invocation" in json.dumps(documented["paths"]["/invoke"]["post"]["requestBody"])
    assert "query_date" in documented["components"]["schemas"]["Question"]["properties"]

    def load() -> object:
        return ask(urls["by-command"], KEY, **good)[1]["metadata"]["model"]["load_id"]

    before = load()
    updated = place.zenml(*as_command, "--update")
    assert updated.returncode == 0 and load() != before, updated.stdout + updated.stderr
    assert place.zenml("deployment", "deprovision", "by-command", "--yes").returncode == 0
    with pytest.raises(OSError):
        urlopen(f"{urls['by-command']}/health", timeout=60)
    provisioned = place.zenml("deployment", "provision", "by-command")
    assert provisioned.returncode == 0 and load(), provisioned.stdout + provisioned.stderr
    assert place.zenml("deployment", "delete", "by-command", "--yes").returncode == 0
    with pytest.raises(OSError):
        urlopen(f"{urls['by-command']}/health", timeout=60)
    assert ask(urls["by-code"], KEY, **good)[0] == 200
    assert place.zenml("deployment", "describe", "by-command").returncode != 0


def test_the_benchmarks_deploy_and_ask_a_checkpoint(place: Place) -> None:
    checkpoint = str(place.base.with_name("tiny-with-questions"))
    load = ("benchmarks.service_load", "--callers", "4", "--minutes", "0.05")
    database = str(place.base.with_name("mails.sqlite"))
    few = ("--requests", "20", "--questions", "6", "--connections", "20", "--database", database)
    done = place.run(sys.executable, "-m", *load, "--checkpoint", checkpoint)
    figures = json.loads(done.stdout.splitlines()[-1])
    # On a busy machine `/health` may take longer than the benchmark allows, and nothing else may be wrong.
    assert figures["ok"] or figures["health_max_seconds"] > service_load.HEALTH_LIMIT_SECONDS, figures
    assert done.returncode == (0 if figures["ok"] else 1) and figures["answered"] and not figures["health_failures"]
    assert figures["lost"] == figures["mixed_up"] == 0 and set(figures["statuses"]) <= {"200", "503"}, figures
    done = place.run(sys.executable, "-m", "benchmarks.service_attack", *few, "--checkpoint", checkpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ok"]
    listed = json.loads(place.zenml("deployment", "list", "--output", "json").stdout)
    assert not [service["name"] for service in listed["items"] if service["name"].startswith("benchmark-")]


def test_a_killed_service_restarts_automatically(place: Place) -> None:
    chosen = {"checkpoint": str(place.base.with_name("tiny")), "port": free_port()}
    deployed = place.python(DEPLOY, "killed", json.dumps(chosen))
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    url = deployed.stdout.splitlines()[-1]
    good = {"question": "Where is it?", "inbox_address": place.inbox, "query_date": "2035-01-01"}

    def metadata() -> dict[str, object]:
        code = "import json; from zenml.client import Client; d = Client().get_deployment('killed')"
        shown = place.python(f"{code}; print(json.dumps([d.status, d.deployment_metadata['pid']]))")
        status, pid = json.loads(shown.stdout.splitlines()[-1])
        return {"status": status, "pid": pid}

    def model(field: str) -> object:
        with urlopen(f"{url}/model", timeout=60) as response:
            return json.load(response)[field]

    def back(before: object) -> None:
        deadline = time.monotonic() + 900
        while True:
            with contextlib.suppress(OSError):
                if model("process_id") != before:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert ask(url, **good)[0] == 200

    service = model("process_id")
    policies = psutil.Process(service).children()
    assert len(policies) == 1
    policies[0].kill()
    deadline = time.monotonic() + 900
    statuses = []
    while not statuses or statuses[-1] != 200 or 503 not in statuses:
        assert time.monotonic() < deadline
        statuses.append(ask(url, **good)[0])
        time.sleep(0.2)
    assert set(statuses) <= {200, 503} and model("process_id") == service, "the model alone was started again"

    psutil.Process(service).kill()
    back(service)
    service, supervisor = model("process_id"), metadata()["pid"]
    psutil.Process(supervisor).kill()
    back(service)
    deadline = time.monotonic() + 900
    while (after := metadata())["status"] != "running":
        assert time.monotonic() < deadline
    assert after["pid"] != supervisor
    assert place.zenml("deployment", "deprovision", "killed", "--yes").returncode == 0
    with pytest.raises(OSError):
        urlopen(f"{url}/health", timeout=60)
    assert not standstill.alive(after["pid"])


def test_an_open_service_is_refused(place: Place) -> None:
    for arguments in ({"address": "0.0.0.0"}, {"address": "0.0.0.0", "settings": {"deployer": {"auth_key": "short"}}}):
        refused = place.python(DEPLOY, "open", json.dumps(arguments))
        assert refused.returncode == 2 and "key" in refused.stdout.splitlines()[-1]


def test_service_that_cannot_start_says_why(place: Place) -> None:
    wrong = place.python(DEPLOY, "never", json.dumps({"base_model": "no/such model"}))
    assert wrong.returncode == 2
    assert "base_model" in wrong.stdout.splitlines()[-1]
