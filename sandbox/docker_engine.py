"""Containers of a Docker daemon, the local one or that of DOCKER_HOST."""

from __future__ import annotations

import contextlib
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound

from sandbox.containers import APP, Container, DockerFrames
from sandbox.errors import NoIsolation, NotStarted, Unusable
from sandbox.limits import Limits


class DockerEngine:
    """Starts containers without network, capabilities and privileges.

    `owner` names the service. A later service of the same name removes the containers that this one leaves behind.

    Raises:
        NoIsolation: no daemon answers.
    """

    name = "docker"
    places: list[tuple[str, int]] = []
    bare = True

    def __init__(self, owner: str, client: Any = None) -> None:
        self._owner = owner
        try:
            self._docker = client or docker.from_env()
            self._docker.ping()
        except (DockerException, OSError) as error:
            raise NoIsolation(
                f"no Docker daemon answers ({_why(error)}): start one, name one by DOCKER_HOST, or choose another runner"
            ) from None

    def start(self, image: str, command: list[str], limits: Limits, *, name: str, seconds: int) -> Container:
        """Start a container and attach to it, pulling the image if necessary. See `Engine.start`."""
        try:
            try:
                container = self._create(image, command, limits, name)
            except ImageNotFound:
                self._pull(image)
                container = self._create(image, command, limits, name)
        except (DockerException, OSError) as error:
            raise _failure(image, error, 400, 404) from None
        try:
            # Attach before the start, so that no output is lost.
            stream = container.attach_socket(params={"stdin": 1, "stdout": 1, "stream": 1})
            container.start()
        except (DockerException, OSError) as error:
            _remove(container)
            raise _failure(image, error, 400) from None  # with 404 the container is gone, not the image
        # docker-py gives a file-like object around the socket, whose writes would be refused.
        return Container(DockerFrames(getattr(stream, "_sock", stream)), lambda: _remove(container))

    def reap(self) -> int:
        """Remove the containers of an earlier service of this name. Returns their number.

        Raises:
            NoIsolation: the daemon does not list them.
        """
        labels = [f"app={APP}", f"owner={self._owner}"]
        try:
            left = self._docker.containers.list(all=True, filters={"label": labels})
        except (DockerException, OSError) as error:
            raise NoIsolation(f"the Docker daemon does not list containers ({_why(error)})") from None
        for container in left:
            _remove(container)
        return len(left)

    def _pull(self, image: str) -> None:
        """Download an image. Raises DockerException or OSError."""
        for progress in self._docker.api.pull(image, stream=True, decode=True):
            if "error" in progress:  # of a layer: the daemon has answered 200 by then
                raise DockerException(progress["error"])

    def _create(self, image: str, command: list[str], limits: Limits, name: str) -> Any:
        return self._docker.containers.create(
            image,
            command[1:],
            name=name,
            entrypoint=command[:1],
            labels={"app": APP, "owner": self._owner},
            stdin_open=True,  # and closed once the service is gone, which ends the container
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            mem_limit=limits.memory_bytes + (64 << 20),  # the init's own
            memswap_limit=limits.memory_bytes + (64 << 20),
            pids_limit=limits.processes + 8,
        )


def _remove(container: Any) -> None:
    with contextlib.suppress(DockerException, OSError):  # it may be on its way out already, or the daemon is gone
        container.remove(force=True, v=True)


def _failure(image: str, error: Exception, *final: int) -> Unusable | NotStarted:
    """Return Unusable for a missing image or a `final` status, else NotStarted, upon which a client tries again."""
    if isinstance(error, ImageNotFound) or getattr(error, "status_code", None) in final:
        return Unusable(f"image {image}: {_why(error)}")
    return NotStarted(f"no container of {image}: {_why(error)}")


def _why(error: Exception) -> str:
    return " ".join(str(getattr(error, "explanation", None) or error).split())
