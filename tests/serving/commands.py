"""What the tests of deployments run in a child process, where ZenML has another configuration."""

from __future__ import annotations

import json
import runpy
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import zenml.cli.cli
from zenml import Model, save_artifact
from zenml.client import Client
from zenml.config.global_config import GlobalConfiguration
from zenml.model.utils import link_artifact_to_model

from commands.deploy import deploy_inference
from environment.email_db import MailDatabase
from environment.errors import BadMail
from environment.models import Scenario
from materializers.checkpoint import CheckpointMaterializer
from materializers.mail_database import MailDatabaseMaterializer
from steps.artifact_names import CHECKPOINT, MAIL_DATABASE, MODEL_NAME, SCENARIOS
from training.checkpoint import Checkpoint
from training.errors import BadInput


def zenml_command(*arguments: str) -> None:
    _read_the_configuration()
    zenml.cli.cli.cli(args=list(arguments), prog_name="zenml")


def module(name: str, *arguments: str) -> None:
    """Be `python -m name`; `run` is run.py."""
    _read_the_configuration()
    sys.argv[:] = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def deploy(name: str, options: dict[str, Any]) -> None:
    """Print the URL. A refusal is one line, and status 2."""
    _read_the_configuration()
    try:
        print(deploy_inference(name, **options))
    except (BadInput, BadMail) as error:
        print(error)
        sys.exit(2)


def store(folder: str) -> None:
    """Store the checkpoint `tiny` of the folder, and its mails, as the model version in production.

    The checkpoint is written to `tiny-with-questions` as well, with the question that it was trained on.
    """
    _read_the_configuration()
    mails = MailDatabase(Path(folder) / "mails.sqlite")
    asked = Scenario(
        id="1", question="Where?", inbox_address=mails.inboxes()[0], query_date=datetime(2035, 1, 1), split="test"
    )
    scenarios = save_artifact([asked], SCENARIOS)
    tiny = Checkpoint.load(Path(folder) / "tiny")
    trained_on = tiny.manifest.model_copy(update={"data": {SCENARIOS: str(scenarios.id)}})
    with_questions = Checkpoint(tiny.path, trained_on).save(Path(folder) / "tiny-with-questions")
    checkpoint = save_artifact(with_questions, CHECKPOINT, materializer=CheckpointMaterializer)
    database = save_artifact(mails, MAIL_DATABASE, materializer=MailDatabaseMaterializer)
    Client().create_model(MODEL_NAME)
    version = Client().create_model_version(MODEL_NAME)
    for artifact in (checkpoint, database):
        link_artifact_to_model(artifact, Model(name=MODEL_NAME, version=version.name))
    version.set_stage("production")


def metadata(name: str) -> None:
    """Print status and process of a deployment as ZenML has them."""
    _read_the_configuration()
    deployment = Client().get_deployment(name)
    print(json.dumps({"status": deployment.status, "pid": deployment.deployment_metadata["pid"]}))


def _read_the_configuration() -> None:
    """Forget the one that ZenML may have read when it was imported."""
    GlobalConfiguration._reset_instance()
    Client._reset_instance()
