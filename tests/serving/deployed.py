"""A fresh clone in which commands deploy services, and requests to these."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests import fork_server, standstill

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

OWNER_KEY = "the owner's key of both services"
KEY = "a key that may ask about one inbox"


@dataclass
class Service:
    url: str

    def model(self, field: str) -> Any:
        request = Request(f"{self.url}/model", headers={"Authorization": f"Bearer {OWNER_KEY}"})
        with urlopen(request, timeout=60) as response:
            return json.load(response)[field]


@dataclass
class Place:
    """A fresh clone and a ZenML configuration with a stored checkpoint, and the mailbox to ask."""

    folder: Path
    environment: dict[str, str]
    inbox: str
    other: str
    base: Path

    def run(self, *words: str, program: str = "run.py") -> subprocess.CompletedProcess[str]:
        process = fork_server.start(list(words), folder=self.folder, environment=self.environment, program=program)
        with standstill.guarded(process):
            output, errors = process.communicate()
        return subprocess.CompletedProcess(process.args, process.wait(), output, errors or "")

    def zenml(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(*words, program="zenml")

    def python(self, code: str, *words: str) -> subprocess.CompletedProcess[str]:
        # From a file next to run.py, whose folder is then ZenML's source root.
        (self.folder / "code.py").write_text(code)
        return self.run(*words, program="code.py")

    def deployment(self, name: str) -> dict[str, Any]:
        """What ZenML knows about a deployment: its status, and the process id of its supervisor."""
        code = "import json; from zenml.client import Client; d = Client().get_deployment({name!r})"
        shown = self.python(f"{code.format(name=name)}; print(json.dumps([d.status, d.deployment_metadata['pid']]))")
        status, pid = json.loads(shown.stdout.splitlines()[-1])
        return {"status": status, "pid": pid}

    def alone(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in a process that imports everything itself, as a user starts it."""
        return standstill.run(list(command), cwd=self.folder, env=self.environment)


def served_with(folder: Path, place: Place) -> dict[str, Any]:
    """The settings of both services, whose files are in `folder`."""
    keys = folder / "keys.yaml"
    keys.write_text(f"- {{name: ann, key: {KEY}, inboxes: ['{place.inbox}']}}\n")
    return {
        "keys_file": str(keys),
        "allowed_hosts": ["agent.example"],
        "timeout": 200,
        "feedback_folder": str(folder),
    }


def assert_gone(url: str) -> None:
    with pytest.raises(OSError):
        urlopen(f"{url}/health", timeout=60)


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
