"""Real deployments on ZenML's local stack, in a configuration of their own. The model is tiny and random: it never answers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest

from benchmarks import service_load
from environment.email_db import MailDatabase
from tests import children, standstill
from tests.ports import free_port
from tests.serving import commands

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.service, pytest.mark.slow]


@dataclass
class Place:
    """A ZenML configuration with a stored checkpoint, and the mailbox to ask."""

    environment: dict[str, str]
    inbox: str
    other: str
    base: Path

    def run(self, target: Callable[..., None], *arguments: Any) -> subprocess.CompletedProcess[str]:
        return children.completed(target, *arguments, folder=ROOT, environment=self.environment)

    def zenml(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(commands.zenml_command, *arguments)

    @property
    def question(self) -> dict[str, str]:
        return {"question": "Where is it?", "inbox_address": self.inbox, "query_date": "2035-01-01"}

    def metadata(self, deployment: str) -> dict[str, Any]:
        """Return its status and the process that supervises it."""
        return json.loads(self.run(commands.metadata, deployment).stdout.splitlines()[-1])

    def deployments(self) -> dict[str, str]:
        """Name -> URL."""
        listed = json.loads(self.zenml("deployment", "list", "--output", "json").stdout)
        return {service["name"]: service["url"] for service in listed["items"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_store: Path, inbox: str) -> Iterator[Place]:
    environment = os.environ | {"ZENML_CONFIG_PATH": str(tmp_path_factory.mktemp("zenml"))}
    other = MailDatabase(tiny_store / "mails.sqlite").inboxes()[1]
    place = Place(environment, inbox, other, tiny_store / "base")
    missing = place.run(commands.deploy, "agent", {})
    assert missing.returncode == 2, missing.stderr
    assert missing.stdout.splitlines()[-1].startswith("there is no trained checkpoint yet")
    stored = place.run(commands.store, str(tiny_store))
    assert stored.returncode == 0, stored.stderr
    yield place
    for name in place.deployments():
        place.zenml("deployment", "delete", name, "--yes")


OWNER_KEY = "the owner's key of both services"
KEY = "a key that may ask about one inbox"


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


@pytest.fixture(scope="module")
def services(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two services with the same keys, by name: `by-command` of ZenML's command, and `by-code` of ours."""
    folder = tmp_path_factory.mktemp("services")
    keys = folder / "keys.yaml"
    keys.write_text(f"- {{name: ann, key: {KEY}, inboxes: ['{place.inbox}']}}\n")
    by_zenml, by_run = folder / "zenml.yaml", folder / "run.yaml"
    serving = {"keys_file": str(keys), "allowed_hosts": ["agent.example"], "timeout": 200}
    deployment = {"deployment_app_runner_kwargs": {"serving": serving | {"feedback_folder": str(folder)}}}
    # ZenML takes the first free port, and a deployment that starts at the same time may take the same one.
    ports = {"by-command": free_port(), "by-code": free_port()}
    deployers = {name: {"auth_key": OWNER_KEY, "port": port} for name, port in ports.items()}
    by_zenml.write_text(json.dumps({"settings": {"deployer": deployers["by-command"], "deployment": deployment}}))
    same = {"access_keys": str(keys), "allowed_hosts": ["agent.example"], "question_timeout": 200}
    same |= {"feedback_folder": str(folder), "settings": {"deployer": deployers["by-code"]}}
    by_run.write_text(json.dumps(same))
    pipeline = "pipelines.inference.inference_pipeline"
    by_command = place.zenml("pipeline", "deploy", pipeline, "--name", "by-command", "--config", str(by_zenml))
    assert by_command.returncode == 0, by_command.stdout + by_command.stderr
    by_code = place.run(commands.module, "run", "--pipeline", "deploy", "--name", "by-code", "--config", str(by_run))
    assert by_code.returncode == 0, by_code.stdout + by_code.stderr
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    assert f"{urls['by-code']}/invoke" in by_code.stdout
    assert place.deployments() == urls
    yield urls
    # Whatever has become of them, the end of one is not the end of the other, and nothing of either is left.
    for name, other in (("by-command", "by-code"), ("by-code", None)):
        supervisor = place.metadata(name)["pid"]
        assert place.zenml("deployment", "deprovision", name, "--yes").returncode == 0
        with pytest.raises(OSError):
            urlopen(f"{urls[name]}/health", timeout=60)
        assert not standstill.alive(supervisor)
        if other:
            assert ask(urls[other], KEY, **place.question)[0] == 200


def test_both_commands_deploy_the_same_service(place: Place, services: dict[str, str]) -> None:
    good, other = place.question, place.question | {"inbox_address": place.other}
    loads = set()
    for url in services.values():
        answers = [ask(url, KEY, **good) for _ in range(10)]
        assert {status for status, _ in answers} == {200}
        assert all(answer["question"] == good["question"] and "source_ids" in answer for _, answer in answers)
        of_this_service = {answer["metadata"]["model"]["load_id"] for _, answer in answers}
        assert len(of_this_service) == 1
        loads |= of_this_service
        assert ask(url, KEY, **good | {"question": ""})[0] == 422
        keys = ("", "not one of its keys", KEY, OWNER_KEY)
        assert [ask(url, key, **other)[0] for key in keys] == [401, 401, 404, 200]
        assert ask(url, OWNER_KEY, **good | {"inbox_address": "nobody@nowhere.example"})[0] == 404
        hosts = ("agent.example", "agent.example:9", "localhost", "evil.example")
        assert [ask(url, KEY, host, **good)[0] for host in hosts] == [200, 200, 200, 421]
    assert len(loads) == 2

    described = place.zenml("deployment", "describe", "by-command")
    assert services["by-command"] in described.stdout + described.stderr
    log = place.zenml("deployment", "logs", "by-command")
    assert '"event": "request"' in log.stdout + log.stderr, "the access log is there however quiet ZenML is"
    assert good["question"] not in log.stdout + log.stderr and place.inbox not in log.stdout + log.stderr
    with urlopen(f"{services['by-command']}/openapi.json", timeout=300) as response:
        documented = json.load(response)
    assert "Invocation" in json.dumps(documented["paths"]["/invoke"]["post"]["requestBody"])
    assert "query_date" in documented["components"]["schemas"]["Question"]["properties"]


def test_a_benchmark_asks_a_running_service(place: Place, services: dict[str, str]) -> None:
    load = ("benchmarks.service_load", "--callers", "4", "--minutes", "0.05")
    done = place.run(commands.module, *load, "--url", services["by-code"], "--key", OWNER_KEY)
    figures = json.loads(done.stdout.splitlines()[-1])
    # On a busy machine `/health` may take longer than the benchmark allows, and nothing else may be wrong.
    assert figures["ok"] or figures["health_max_seconds"] > service_load.HEALTH_LIMIT_SECONDS, figures
    assert done.returncode == (0 if figures["ok"] else 1) and figures["answered"] and not figures["health_failures"]
    assert figures["lost"] == figures["mixed_up"] == 0 and set(figures["statuses"]) <= {"200", "503"}, figures


def test_a_benchmark_deploys_and_asks_a_checkpoint(place: Place) -> None:
    checkpoint = str(place.base.with_name("tiny-with-questions"))
    database = str(place.base.with_name("mails.sqlite"))
    few = ("--requests", "20", "--questions", "6", "--connections", "20", "--database", database)
    done = place.run(commands.module, "benchmarks.service_attack", *few, "--checkpoint", checkpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ok"]
    assert not [name for name in place.deployments() if name.startswith("benchmark-")]


def test_a_killed_service_restarts_automatically(place: Place, services: dict[str, str]) -> None:
    url, good = services["by-code"], place.question

    def model(field: str) -> object:
        request = Request(f"{url}/model", headers={"Authorization": f"Bearer {KEY}"})
        with urlopen(request, timeout=60) as response:
            return json.load(response)[field]

    def back(before: object) -> None:
        deadline = time.monotonic() + 900
        while True:
            with contextlib.suppress(OSError):
                if model("process_id") != before:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert ask(url, KEY, **good)[0] == 200

    service = model("process_id")
    policies = psutil.Process(service).children()
    assert len(policies) == 1
    policies[0].kill()
    deadline = time.monotonic() + 900
    statuses = []
    while not statuses or statuses[-1] != 200 or 503 not in statuses:
        assert time.monotonic() < deadline
        statuses.append(ask(url, KEY, **good)[0])
        time.sleep(0.2)
    assert set(statuses) <= {200, 503} and model("process_id") == service, "the model alone was started again"

    psutil.Process(service).kill()
    back(service)
    service, supervisor = model("process_id"), place.metadata("by-code")["pid"]
    psutil.Process(supervisor).kill()
    back(service)
    deadline = time.monotonic() + 900
    while (after := place.metadata("by-code"))["status"] != "running":
        assert time.monotonic() < deadline
    assert after["pid"] != supervisor


def test_an_open_service_is_refused(place: Place) -> None:
    for options in ({"address": "0.0.0.0"}, {"address": "0.0.0.0", "settings": {"deployer": {"auth_key": "short"}}}):
        refused = place.run(commands.deploy, "open", options)
        assert refused.returncode == 2 and "key" in refused.stdout.splitlines()[-1]


def test_service_that_cannot_start_says_why(place: Place) -> None:
    wrong = place.run(commands.deploy, "never", {"base_model": "no/such model"})
    assert wrong.returncode == 2
    assert "base_model" in wrong.stdout.splitlines()[-1]
