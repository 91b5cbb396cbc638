"""Find a service that `--pipeline deploy` started, and send it requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from zenml.client import Client

from cluster.errors import RunFailed
from training.errors import BadInput
from training.loopback import is_here

KEY = "EMAIL_AGENT_KEY"
"""Environment variable with the key to use. Without it, the owner's, which ZenML knows, is used."""
ANSWER_SECONDS = 330.0
"""More than a service allows any question."""


@dataclass(frozen=True)
class RunningService:
    """Where a service answers, and the headers that it asks for."""

    name: str
    url: str
    headers: dict[str, str]

    @property
    def trust_env(self) -> bool:
        """Whether requests may go through a proxy of the environment, which would get the key of a local service."""
        return not is_here(self.url)

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """Yield a client of the service. Raises RunFailed if it does not answer."""
        options: dict[str, Any] = {"timeout": ANSWER_SECONDS, "trust_env": self.trust_env}
        try:
            with httpx.Client(base_url=self.url, headers=self.headers, **options) as client:
                yield client
        except httpx.TransportError as error:
            raise self.does_not_answer(error) from error

    def does_not_answer(self, error: BaseException) -> RunFailed:
        """Return the error of a service that ZenML knows and that cannot be reached."""
        return RunFailed(
            f"{self.name} does not answer at {self.url} ({type(error).__name__}): "
            f"`zenml deployment describe {self.name}` says more"
        )


def find_service(name: str) -> RunningService:
    """Return the service of this name, with the key of the environment or its owner's.

    Raises BadInput if ZenML knows none that runs, or no header can carry the key.
    """
    try:
        deployment = Client().get_deployment(name)
    except KeyError:
        raise BadInput(f"there is no service {name!r}: `zenml deployment list` shows those there are") from None
    if not deployment.url:
        raise BadInput(f"{name} is not running: `python run.py --pipeline deploy --name {name}` starts it")
    key = os.environ.get(KEY) or deployment.auth_key or ""
    if not (key.isascii() and key.isprintable()):
        raise BadInput(
            f"{KEY}: has characters other than printable ASCII, which no header can carry: copy the key again"
        )
    return RunningService(name, deployment.url, {"Authorization": f"Bearer {key}"} if key else {})


def accepted(response: httpx.Response) -> dict[str, Any]:
    """Return the body of a response. Raises what the service says when it refuses."""
    try:
        body = dict(response.json())
    except ValueError:
        raise RunFailed(f"{response.url} answered {response.status_code} with something that is no JSON") from None
    if response.is_success:
        return body
    said = str(body.get("error", response.reason_phrase))
    if response.is_client_error:
        raise BadInput(said)
    raise RunFailed(said)
