"""The application runner with which ZenML's deployers, local and on a cluster, run the service."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from pydantic import ValidationError
from zenml.client import Client
from zenml.deployers.server.app import BaseDeploymentAppRunnerFlavor
from zenml.deployers.server.fastapi.app import FastAPIDeploymentAppRunner
from zenml.enums import DeploymentStatus
from zenml.models import DeploymentUpdate
from zenml.steps.step_context import get_or_create_run_context

from serving import supervision
from serving.access import Keys, Origins
from serving.key_file import read_keys
from serving.runner_flavor import ServiceRunnerFlavor
from serving.settings import LEAST_KEY_CHARS, ServingSettings
from training.errors import BadInput
from training.loopback import is_loopback

if TYPE_CHECKING:
    from serving.bodies import Reply, TaskReply
    from serving.service import Service

logger = logging.getLogger(__name__)


class ServiceRunner(FastAPIDeploymentAppRunner):
    """Serves `serving.app` in place of ZenML's own endpoints."""

    def __init__(self, deployment: Any, serving: dict[str, Any] | None = None, task: str | None = None) -> None:
        """`serving`: the fields of `ServingSettings`; `task`: the title of a task, None for mail.

        Raises:
            SystemExit: a field is unknown or out of bounds.
        """
        super().__init__(deployment)
        self.task = task
        try:
            self.serving = ServingSettings.model_validate(serving or {})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, ("serving", *first["loc"])))
            sys.exit(f"BadInput: {where}: {first['msg'].removeprefix('Value error, ')}")

    @property
    def flavor(self) -> BaseDeploymentAppRunnerFlavor:
        return ServiceRunnerFlavor()

    def run(self) -> None:
        """Serve, or on ZenML's local deployer supervise a process that does.

        Raises:
            SystemExit: the service would be open to everybody, its keys cannot be read, or it has ended.
        """
        from serving.log import configure

        configure()
        try:
            self.serving = with_keys(self.serving)
        except BadInput as error:
            sys.exit(f"BadInput: {error}")
        if problem := open_door(self.settings.uvicorn_host, self.deployment.auth_key, self.serving):
            sys.exit(f"BadInput: {problem}")
        deployer = self.deployment.deployer
        if deployer is None or deployer.flavor_name != "local":
            self._serve()
            return
        command = [sys.executable, "-m", "zenml.deployers.server.app", "--deployment_id", str(self.deployment.id)]
        command += ["--host", self.settings.uvicorn_host, "--port", str(self.settings.uvicorn_port)]
        if supervision.is_service():
            self._serve(*supervision.serve_supervised(command))
            return
        host, port = self.settings.uvicorn_host, self.settings.uvicorn_port
        try:
            listening = supervision.listen(host, port)
        except OSError as error:
            sys.exit(f"OSError: the service cannot listen on {host}:{port}: {error.strerror}")
        supervision.supervise(command, listening, show_state=self._show_state)

    def _serve(self, accepting: socket.socket | None = None, say_ready: Callable[[], None] = lambda: None) -> None:
        from serving.app import ServiceApp
        from serving.http_protocol import server_config

        settings = self.settings
        keys = Keys(self.deployment.auth_key, self.serving.keys)
        app = ServiceApp(
            self._load,
            self.shutdown,
            self._record,
            name=self.deployment.name,
            settings=self.serving,
            keys=keys,
            origins=Origins(settings.uvicorn_host, self.serving.allowed_hosts, open_to_any=len(keys) > 0),
            task=self.task,
        )
        config = server_config(app.asgi, host=settings.uvicorn_host, port=settings.uvicorn_port)
        server = _Server(config, say_ready)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[accepting] if accepting else None)
        if not server.started:
            sys.exit(3)

    def _load(self) -> Service[Any, Any]:
        """Run the pipeline's init hook."""
        self.startup()
        return loaded_service()

    def _record(self, reply: Reply | TaskReply) -> None:
        """Run the pipeline once for an answer that was given."""
        request_model, _ = self.service.get_pipeline_invoke_models()
        given = reply.metadata
        parameters = given.parameters_used.model_dump() | {"request_id": given.request_id}
        done = self.service.execute_pipeline(
            request_model.model_validate({"parameters": parameters, "run_name": given.run_name})
        )
        if not done.success:
            raise RuntimeError("the pipeline run failed")

    def _show_state(self, running: bool) -> None:
        """Record in ZenML whether the service runs, and in which process."""
        from serving.log import cause

        update = DeploymentUpdate(status=DeploymentStatus.RUNNING if running else DeploymentStatus.PENDING)
        try:
            client = Client()
            metadata = client.get_deployment(self.deployment.id).deployment_metadata or {}
            if metadata.get("pid", os.getpid()) != os.getpid():
                update.deployment_metadata = metadata | {"pid": os.getpid()}
            client.zen_store.update_deployment(self.deployment.id, update)
        except Exception as error:  # whatever ZenML's store raises: the service matters more than its entry there
            logger.error("state not recorded", extra={"fields": cause(error)})


class _Server(uvicorn.Server):
    """A uvicorn server that says when it listens."""

    def __init__(self, config: uvicorn.Config, say_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_ready = say_ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._say_ready()


def with_keys(serving: ServingSettings) -> ServingSettings:
    """Return the settings with the keys of `keys_file` in place of the file's name. Raises BadInput."""
    if serving.keys_file is None:
        return serving
    return serving.model_copy(update={"keys": read_keys(serving.keys_file), "keys_file": None})


def open_door(host: str, auth_key: str | None, serving: ServingSettings) -> str | None:
    """Return what is wrong with serving on `host` with these keys: everybody could ask, or the key can be guessed."""
    if auth_key and len(auth_key) < LEAST_KEY_CHARS:
        return f"auth_key: has {len(auth_key)} characters, at least {LEAST_KEY_CHARS} are needed"
    if auth_key and not auth_key.isascii():
        return "auth_key: has characters that are not ASCII, which a request's header cannot carry; choose another key"
    if not is_loopback(host) and not auth_key and not serving.keys:
        return (
            f"a service that listens on {host} needs a key: set auth_key, or generate_auth_key: true, in the settings of "
            "the deployer, or name a file of access_keys"
        )
    return None


def loaded_service() -> Service[Any, Any]:
    """Return what the pipeline's init hook loaded into this process. Raises RuntimeError outside a running service."""
    from serving.service import Service

    service = get_or_create_run_context().state
    if not isinstance(service, Service):
        raise RuntimeError("no model is loaded: the pipeline's init hook did not run")
    return service
