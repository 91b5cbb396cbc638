"""Real deployments on ZenML's local stack, by a user's commands in a fresh clone. The model is tiny and random: it never answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from mcp import Client, StdioServerParameters

from benchmarks import service_load
from environment.email_db import MailDatabase
from tests import fork_server, standstill
from tests.checkout import fresh_clone, user_environment
from tests.ports import free_port
from tests.serving.deployed import KEY, OWNER_KEY, STORE, Place, Service, ask, assert_gone, served_with

PIPELINE = "pipelines.inference.inference_pipeline"
pytestmark = [pytest.mark.service, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_store: Path, inbox: str) -> Place:
    folder = fresh_clone(tmp_path_factory.mktemp("clone") / "mit Leerzeichen und Umläuten")
    environment = user_environment(tmp_path_factory.mktemp("zenml"))
    other = MailDatabase(tiny_store / "mails.sqlite").inboxes()[1]
    place = Place(folder, environment, inbox, other, tiny_store / "base")
    missing = place.run("--pipeline", "deploy")
    assert missing.returncode == 2 and "error: there is no trained checkpoint yet" in missing.stderr, missing.stderr
    stored = place.python(STORE, str(tiny_store))
    assert stored.returncode == 0, stored.stderr
    return place


@pytest.fixture(scope="module")
def by_code(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The checkpoint of a folder as a service by `run.py`, with the keys of `served_with`."""
    folder = tmp_path_factory.mktemp("by-code")
    # ZenML takes the first free port, and a deployment that starts at the same time may take the same one.
    port, file = free_port(), folder / "run.yaml"
    serving = served_with(folder, place)
    same = {"access_keys": serving["keys_file"], "question_timeout": serving["timeout"]}
    same |= {key: serving[key] for key in ("allowed_hosts", "feedback_folder")}
    file.write_text(json.dumps({"deployment": same, "settings": {"deployer": {"auth_key": OWNER_KEY, "port": port}}}))
    tiny = str(place.base.with_name("tiny"))
    deployed = place.run("--pipeline", "deploy", "--name", "by-code", "--config", str(file), "--checkpoint", tiny)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    service = Service(f"http://127.0.0.1:{port}")
    assert f"{service.url}/invoke" in deployed.stdout
    yield service
    supervisor = place.deployment("by-code")["pid"]
    assert place.zenml("deployment", "delete", "by-code", "--yes").returncode == 0
    assert_gone(service.url)
    assert not standstill.alive(supervisor)


def test_both_commands_deploy_the_same_service(place: Place, by_code: Service, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    deployment = {"deployment_app_runner_kwargs": {"serving": served_with(tmp_path, place)}}
    file = tmp_path / "zenml.yaml"
    file.write_text(
        json.dumps({"settings": {"deployer": {"auth_key": OWNER_KEY, "port": port}, "deployment": deployment}})
    )
    as_command = ("pipeline", "deploy", PIPELINE, "--name", "by-command", "--config", str(file))
    by_command = place.alone(str(Path(sys.executable).with_name("zenml")), *as_command)
    assert by_command.returncode == 0, by_command.stdout + by_command.stderr

    good = {"question": "Where is it?", "inbox_address": place.inbox, "query_date": "2035-01-01"}
    other = good | {"inbox_address": place.other}
    loads = set()
    for asked in (url, by_code.url):
        answers = [ask(asked, KEY, **good) for _ in range(10)]
        assert {status for status, _ in answers} == {200}
        assert all(answer["question"] == good["question"] and "source_ids" in answer for _, answer in answers)
        of_this_service = {answer["metadata"]["model"]["load_id"] for _, answer in answers}
        assert len(of_this_service) == 1
        loads |= of_this_service
        assert ask(asked, KEY, **good | {"question": ""})[0] == 422
        assert [ask(asked, key, **other)[0] for key in ("", "not one of its keys", KEY, OWNER_KEY)] == [
            401,
            401,
            404,
            200,
        ]
        assert ask(asked, OWNER_KEY, **good | {"inbox_address": "nobody@nowhere.example"})[0] == 404
        hosts = ("agent.example", "agent.example:9", "localhost", "evil.example")
        assert [ask(asked, KEY, host, **good)[0] for host in hosts] == [200, 200, 200, 421]
    assert len(loads) == 2

    described = place.zenml("deployment", "describe", "by-command")
    assert url in described.stdout + described.stderr
    log = place.zenml("deployment", "logs", "by-command")
    assert '"event": "request"' in log.stdout + log.stderr, "the access log is there however quiet ZenML is"
    assert good["question"] not in log.stdout + log.stderr and place.inbox not in log.stdout + log.stderr
    with urlopen(f"{url}/openapi.json", timeout=300) as response:
        documented = json.load(response)
    assert "Invocation" in json.dumps(documented["paths"]["/invoke"]["post"]["requestBody"])
    assert "query_date" in documented["components"]["schemas"]["Question"]["properties"]

    def load() -> object:
        return ask(url, KEY, **good)[1]["metadata"]["model"]["load_id"]

    before = load()
    updated = place.zenml(*as_command, "--update")
    assert updated.returncode == 0 and load() != before, updated.stdout + updated.stderr
    assert place.zenml("deployment", "deprovision", "by-command", "--yes").returncode == 0
    assert_gone(url)
    provisioned = place.zenml("deployment", "provision", "by-command")
    assert provisioned.returncode == 0 and load(), provisioned.stdout + provisioned.stderr
    assert place.zenml("deployment", "delete", "by-command", "--yes").returncode == 0
    assert_gone(url)
    assert ask(by_code.url, KEY, **good)[0] == 200
    assert place.zenml("deployment", "describe", "by-command").returncode != 0


def test_a_question_on_the_command_line(place: Place, by_code: Service) -> None:
    """To the service, and to a model that is loaded for it. The random model gives up on both."""
    about = ("--inbox", place.inbox, "--date", "2035-01-01", "--json")
    for model in (("--name", "by-code"), ("--checkpoint", str(place.base.with_name("tiny")))):
        done = place.run("--pipeline", "ask", "Where is it?", *model, *about)
        assert done.returncode == 0, done.stdout + done.stderr
        answer = json.loads(done.stdout)
        assert answer["question"] == "Where is it?" and answer["answer"] is None and not answer["success"]


def test_mail_tools_over_stdio(place: Place, by_code: Service) -> None:
    """As a client that starts its servers itself does it, with the key of one inbox."""
    words = ["run.py", "--pipeline", "mcp", "--name"]
    environment = {**place.environment, "EMAIL_AGENT_KEY": KEY}

    def server(name: str) -> StdioServerParameters:
        return StdioServerParameters(command=sys.executable, args=[*words, name], env=environment, cwd=place.folder)

    async def talk() -> tuple[list[str], Any, Any, Any]:
        async with Client(server("by-code")) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            found = await client.call_tool(
                "search_mail", {"keywords": [], "sent_after": "2000-01-01", "as_of": "2035-01-01"}
            )
            message_id = found.structured_content["mails"][0]["message_id"]
            read = await client.call_tool("read_mail", {"message_id": message_id, "as_of": "2035-01-01"})
            return tools, read, found, await client.call_tool("search_mail", {"keywords": ["a"], "inbox": place.other})

    tools, read, found, foreign = asyncio.run(talk())
    assert tools == ["search_mail", "read_mail", "ask_mailbox"]
    assert read.structured_content["text"] and found.structured_content["mails"]
    assert foreign.is_error and "unknown inbox" in foreign.content[0].text
    absent = place.run("--pipeline", "mcp", "--name", "absent")
    assert absent.returncode == 2 and "there is no service 'absent'" in absent.stderr


@pytest.mark.nightly
def test_the_benchmarks_deploy_and_ask_a_checkpoint(place: Place) -> None:
    checkpoint = str(place.base.with_name("tiny-with-questions"))
    load = ("benchmarks.service_load", "--callers", "4", "--minutes", "0.05")
    database = str(place.base.with_name("mails.sqlite"))
    few = ("--requests", "20", "--questions", "6", "--connections", "20", "--database", database)
    done = place.alone(sys.executable, "-m", *load, "--checkpoint", checkpoint)
    figures = json.loads(done.stdout.splitlines()[-1])
    # On a busy machine `/health` may take longer than the benchmark allows, and nothing else may be wrong.
    assert figures["ok"] or figures["health_max_seconds"] > service_load.HEALTH_LIMIT_SECONDS, figures
    assert done.returncode == (0 if figures["ok"] else 1) and figures["answered"] and not figures["health_failures"]
    assert figures["lost"] == figures["mixed_up"] == 0 and set(figures["statuses"]) <= {"200", "503"}, figures
    done = place.alone(sys.executable, "-m", "benchmarks.service_attack", *few, "--checkpoint", checkpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ok"]
    listed = json.loads(place.zenml("deployment", "list", "--output", "json").stdout)
    assert not [service["name"] for service in listed["items"] if service["name"].startswith("benchmark-")]


def test_a_killed_service_restarts_automatically(place: Place, by_code: Service) -> None:
    good = {"question": "Where is it?", "inbox_address": place.inbox, "query_date": "2035-01-01"}

    def back(before: object) -> None:
        deadline = time.monotonic() + 900
        while True:
            with contextlib.suppress(OSError):
                if by_code.model("process_id") != before:
                    break
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert ask(by_code.url, KEY, **good)[0] == 200

    service = by_code.model("process_id")
    policies = psutil.Process(service).children()
    assert len(policies) == 1
    policies[0].kill()
    deadline = time.monotonic() + 900
    statuses = []
    while not statuses or statuses[-1] != 200 or 503 not in statuses:
        assert time.monotonic() < deadline
        statuses.append(ask(by_code.url, KEY, **good)[0])
        time.sleep(0.2)
    assert set(statuses) <= {200, 503} and by_code.model("process_id") == service, "the model alone was started again"

    psutil.Process(service).kill()
    back(service)
    service, supervisor = by_code.model("process_id"), place.deployment("by-code")["pid"]
    psutil.Process(supervisor).kill()
    back(service)
    deadline = time.monotonic() + 900
    while (after := place.deployment("by-code"))["status"] != "running":
        assert time.monotonic() < deadline
    assert after["pid"] != supervisor


def test_an_open_service_is_refused(place: Place) -> None:
    for settings in ("{}", '{"deployer": {"auth_key": "short"}}'):
        refused = place.run("--pipeline", "deploy", "--set", "address=0.0.0.0", "--set", f"settings={settings}")
        assert refused.returncode == 2 and "key" in refused.stderr.splitlines()[-1], refused.stderr


def test_a_service_that_cannot_start_says_why(place: Place) -> None:
    wrong = place.run("--pipeline", "deploy", "--set", "base_model=no/such model")
    assert wrong.returncode == 2
    assert "base_model" in wrong.stderr.splitlines()[-1]


def supervisors(port: int) -> list[int]:
    words = ["--port", str(port)]
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        command = process.info["cmdline"] or []
        if "zenml.deployers.server.app" in command and words == command[-2:]:
            found.append(process.info["pid"])
    return found


def test_an_interrupted_deployment_leaves_nothing_that_runs(place: Place) -> None:
    port = free_port()
    words = ["--pipeline", "deploy", "--name", "stopped", "--set", f"port={port}", "--set", f"base_model={place.base}"]
    process = fork_server.start(words, folder=place.folder, environment=place.environment, background=True)
    try:
        with standstill.guarded(process):
            while not supervisors(port):
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.2)
            process.terminate()
            output, _ = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in output, output
    assert output.splitlines()[-1] == "stopped; service stopped does not run, the same command starts it"
    assert not supervisors(port)


@pytest.mark.nightly  # two more real deployments; `test_supervision` and `test_service_pipeline` look at the parts
def test_of_two_deployments_at_once_each_has_a_port_of_its_own(place: Place) -> None:
    port = free_port()
    words = ["--pipeline", "deploy", "--set", f"port={port}", "--set", f"base_model={place.base}"]
    started = [
        fork_server.start([*words, "--name", name], folder=place.folder, environment=place.environment)
        for name in ("left", "right")
    ]
    urls = set()
    for process in started:
        with standstill.guarded(process):
            output, errors = process.communicate()
        assert process.wait() == 0, output + (errors or "")
        [line] = [line for line in output.splitlines() if " answers at " in line]
        urls.add(line.split()[3].removesuffix("/invoke"))
    assert len(urls) == 2
    for name in ("left", "right"):
        assert place.zenml("deployment", "delete", name, "--yes").returncode == 0
    for url in urls:
        assert_gone(url)
