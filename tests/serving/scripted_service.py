"""The service with a scripted policy: real mails, real agent, real HTTP; only the language model is played."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import uvicorn

from agent.settings import AgentSettings
from environment.email_db import MailDatabase, build_database
from environment.models import Email
from serving.access import Keys, Origins
from serving.app import ServiceApp
from serving.bodies import Question, Reply
from serving.http_protocol import server_config
from serving.log import configure
from serving.service import AnswerService, describe_model
from serving.settings import ServingSettings
from tests.fakes.policy import MailPolicy
from training.task import Policy

ANN = "ann@kestrel.example"
BO = "bo@kestrel.example"
GOOD = {"question": "Where do we review the budget?", "inbox_address": ANN, "query_date": "2024-05-15"}
HOSTILE = "</pre><img src=x onerror=\"document.title='owned'\">"
MAILS = [
    Email(
        message_id="<review@kestrel.example>",
        subject="Budget review",
        from_address=BO,
        to_addresses=(ANN,),
        date=datetime(2024, 3, 1, 9),
        body=f"Hello Ann 😀,\n\nthe budget review takes place in room 4B, on 5 March at 15:00.\n\n{HOSTILE}\nBo",
    ),
    Email(
        message_id="<lunch@kestrel.example>",
        subject="Lunch",
        from_address="cy@kestrel.example",
        to_addresses=(BO,),
        date=datetime(2024, 3, 2, 9),
        body="Shall we have lunch in the old mill?",
    ),
]


def scripted_app(
    policy: MailPolicy,
    folder: Path,
    *,
    key: str | None = None,
    records: list[Reply] | None = None,
    mails: Sequence[Email] = (),
    **settings: Any,
) -> ServiceApp:
    """The application as it is deployed, with `policy` as its model and nothing that records runs."""
    configure()
    folder.mkdir(parents=True, exist_ok=True)
    build_database([*MAILS, *mails], folder / "mails.sqlite")
    services: list[AnswerService] = []

    def load() -> AnswerService:
        database = MailDatabase(folder / "mails.sqlite")
        examples = {ANN: [Question.model_validate(GOOD)]}
        limits = AgentSettings(max_turns=4, max_tokens=64)

        def played(base_url: str) -> Policy:
            return Policy(base_url=base_url, model="m", temperature=0, max_tokens=64)

        model = describe_model("here", "r123456789", 3, "scripted model", database.email_count())
        services.append(AnswerService(policy, played, database, limits, model, examples))
        return services[-1]

    serving = ServingSettings.model_validate({"feedback_folder": folder / "feedback", "timeout": 60} | settings)
    keys = Keys(key, serving.keys)
    return ServiceApp(
        load,
        lambda: services[-1].close(),
        (records if records is not None else []).append,
        name="test",
        settings=serving,
        keys=keys,
        origins=Origins("127.0.0.1", serving.allowed_hosts, open_to_any=len(keys) > 0),
    )


@contextlib.contextmanager
def served(app: ServiceApp, port: int = 0) -> Iterator[str]:
    """The URL of the application, served by uvicorn as the deployed one is."""
    listening = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(server_config(app.asgi))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
