"""Find a service that `--pipeline deploy` started."""

from __future__ import annotations

from dataclasses import dataclass

from zenml.client import Client

from cluster.errors import RunFailed
from training.errors import BadInput


@dataclass(frozen=True)
class RunningService:
    """Where a service answers, and the headers that it asks for."""

    name: str
    url: str
    headers: dict[str, str]

    def does_not_answer(self, error: BaseException) -> RunFailed:
        """Return the error of a service that ZenML knows and that cannot be reached."""
        return RunFailed(
            f"{self.name} does not answer at {self.url} ({type(error).__name__}): "
            f"`zenml deployment describe {self.name}` says more"
        )


def find_service(name: str) -> RunningService:
    """Return the service of this name, with its owner's key. Raises BadInput if ZenML knows none that runs."""
    try:
        deployment = Client().get_deployment(name)
    except KeyError:
        raise BadInput(f"there is no service {name!r}: `zenml deployment list` shows those there are") from None
    if not deployment.url:
        raise BadInput(f"{name} is not running: `python run.py --pipeline deploy --name {name}` starts it")
    headers = {"Authorization": f"Bearer {deployment.auth_key}"} if deployment.auth_key else {}
    return RunningService(name, deployment.url, headers)
