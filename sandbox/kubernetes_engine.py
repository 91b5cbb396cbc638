"""Pods of a Kubernetes cluster: the one that KUBECONFIG names, or the one that this process runs in."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.stream import stream
from pydantic import BaseModel, ConfigDict, ValidationError
from websocket import ABNF, WebSocketException, WebSocketTimeoutException

from sandbox.containers import APP, Container
from sandbox.errors import NoIsolation, NotStarted, Unusable
from sandbox.limits import Limits

STDIN, STDOUT = 0, 1
"""Channels of an attached pod."""
UNANSWERED = (ApiException, urllib3.exceptions.HTTPError)
"""What a request raises that the API server refuses or does not answer."""
REQUEST_SECONDS = 30
"""Timeout of a request to the API server."""
NOT_PULLED = frozenset(["ErrImagePull", "ImagePullBackOff"])
"""Reasons that a registry which is busy or unreachable gives too, unless the message has one of NOT_THERE."""
NOT_THERE = ("not found", "does not exist", "manifest unknown", "denied")
NO_IMAGE = NOT_PULLED | {"InvalidImageName", "ErrImageNeverPull"}


class PodTemplate(BaseModel):
    """Additional fields of every pod's `spec` and `container`, from a YAML file."""

    model_config = ConfigDict(extra="forbid")

    spec: dict[str, Any] = {}
    container: dict[str, Any] = {}

    @classmethod
    def load(cls, file: Path | None) -> PodTemplate:
        """Return the fields in `file`. Raises ValueError when it cannot be used."""
        if file is None:
            return cls()
        try:
            return cls.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"pod_template={file}: {' '.join(str(error).split())}") from None
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"pod_template={': '.join([str(file), *map(str, first['loc']), first['msg']])}") from None


class KubernetesEngine:
    """Starts pods without service account, capabilities and network.

    `owner` names the service. A later service of the same name removes the pods that this one leaves behind. A network
    policy closes the network; this class creates or replaces it if it has the right to. The runner tests whether the
    cluster enforces it.

    Raises:
        NoIsolation: no cluster answers.
    """

    name = "kubernetes"
    bare = False

    def __init__(self, owner: str, namespace: str, template: PodTemplate, *, start_seconds: float) -> None:
        self._labels = {"app.kubernetes.io/name": APP, "owner": owner}
        self._namespace, self._template, self._start_seconds = namespace, template, start_seconds
        try:
            try:
                config.load_incluster_config()
            except ConfigException:
                _load_kubeconfig()
            self._core = client.CoreV1Api()
            service = self._core.read_namespaced_service("kubernetes", "default", _request_timeout=REQUEST_SECONDS)
            self._close_network()
        except (ConfigException, *UNANSWERED) as error:
            raise NoIsolation(
                f"no Kubernetes cluster answers ({_why(error)}): set KUBECONFIG, or choose another runner"
            ) from None
        self.places = [(service.spec.cluster_ip, service.spec.ports[0].port)]

    def start(self, image: str, command: list[str], limits: Limits, *, name: str, seconds: int) -> Container:
        """Start a pod and attach to it. See `Engine.start`."""
        pod = self._pod(image, command, limits, name, seconds)
        try:
            self._core.create_namespaced_pod(self._namespace, pod, _request_timeout=REQUEST_SECONDS)
            self._wait(name, image)
            # A separate client, because attaching replaces the request method of its client. It takes no timeout.
            api = client.CoreV1Api(client.ApiClient())
            attached = stream(
                api.connect_get_namespaced_pod_attach,
                name,
                self._namespace,
                stdin=True,
                stdout=True,
                stderr=False,
                tty=False,
                _preload_content=False,
            )
        except UNANSWERED as error:
            self._remove(name)  # it may exist even if creating it failed: the answer was lost
            raise NotStarted(f"no pod of {image}: {_why(error)}") from None
        except BaseException:
            self._remove(name)
            raise
        return Container(PodConnection(attached.sock), lambda: self._remove(name))

    def reap(self) -> int:
        """Delete the pods of an earlier service of this name. Returns their number.

        Raises:
            NoIsolation: they cannot be listed.
        """
        selector = ",".join(f"{name}={value}" for name, value in self._labels.items())
        try:
            pods = self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=REQUEST_SECONDS
            ).items
        except UNANSWERED as error:
            raise NoIsolation(f"the pods of namespace {self._namespace} cannot be listed ({_why(error)})") from None
        for pod in pods:
            self._remove(pod.metadata.name)
        return len(pods)

    def _pod(self, image: str, command: list[str], limits: Limits, name: str, seconds: int) -> dict[str, Any]:
        resources = {"memory": str(limits.memory_bytes + (64 << 20)), "cpu": "1"}
        container = {
            "image": image,
            "resources": {"limits": resources, "requests": {**resources, "cpu": "100m"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **self._template.container,
            "name": "workspace",
            "command": command,
            "stdin": True,
            "stdinOnce": True,  # closed once the service is gone, which ends the pod
        }
        spec = {
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            **self._template.spec,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            # The start includes the download of the image.
            "activeDeadlineSeconds": seconds + math.ceil(self._start_seconds),
            "containers": [container],
        }
        return {"metadata": {"name": name, "labels": self._labels}, "spec": spec}

    def _wait(self, name: str, image: str) -> None:
        """Wait until the pod runs. Raises NotStarted or Unusable."""
        until = time.monotonic() + self._start_seconds
        while True:
            status = self._core.read_namespaced_pod_status(
                name, self._namespace, _request_timeout=REQUEST_SECONDS
            ).status
            states = [each.state for each in status.container_statuses or []]
            if status.phase == "Running" and all(state.running for state in states):
                return
            if status.phase in ("Failed", "Succeeded"):
                if status.reason:  # the kubelet has ended it: Evicted, Preempting, OutOfcpu and others
                    said = ": ".join(filter(None, (status.reason, status.message)))
                    raise NotStarted(f"the pod of {image} was ended ({said})")
                ended = [state.terminated for state in states if state.terminated]
                why = status.message or next((end.message or end.reason for end in ended), "no reason given")
                raise Unusable(f"image {image}: its pod ended at once ({why})")
            waiting = next((state.waiting for state in states if state.waiting), None)
            if waiting is not None and waiting.reason in NO_IMAGE:
                why = waiting.message or waiting.reason
                later = waiting.reason in NOT_PULLED and not any(said in why.lower() for said in NOT_THERE)
                raise (NotStarted if later else Unusable)(f"image {image}: it cannot be pulled ({why})")
            if time.monotonic() > until:
                why = (waiting and waiting.reason) or _unscheduled(status) or status.phase
                warned = self._warning(name)
                why += f"; last warning: {warned}" if warned not in (None, why) else ""
                raise NotStarted(f"the pod of {image} does not run after {self._start_seconds:g} s ({why})")
            time.sleep(0.1)

    def _warning(self, name: str) -> str | None:
        """Return the last warning about the pod, which a container that is only being created does not give."""
        try:
            events = self._core.list_namespaced_event(
                self._namespace,
                field_selector=f"involvedObject.name={name},type=Warning",
                _request_timeout=REQUEST_SECONDS,
            ).items
        except UNANSWERED:  # the right to list events is not needed for anything else
            return None
        last = max(events, key=lambda event: event.last_timestamp or event.metadata.creation_timestamp, default=None)
        return last and " ".join((last.message or last.reason).split())

    def _remove(self, name: str) -> None:
        with contextlib.suppress(*UNANSWERED):  # gone already, or its deadline ends it
            self._core.delete_namespaced_pod(
                name, self._namespace, grace_period_seconds=0, _request_timeout=REQUEST_SECONDS
            )

    def _close_network(self) -> None:
        policy = {
            "metadata": {"name": APP},
            "spec": {
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": APP}},
                "policyTypes": ["Ingress", "Egress"],
            },
        }
        networking, timed = client.NetworkingV1Api(), {"_request_timeout": REQUEST_SECONDS}
        try:
            try:
                networking.create_namespaced_network_policy(self._namespace, policy, **timed)
            except ApiException as error:
                if error.status != 409:
                    raise
                # One of this name may be there that lets workspaces out.
                networking.replace_namespaced_network_policy(APP, self._namespace, policy, **timed)
        except ApiException as error:
            if error.status != 403:  # only somebody else may write it
                raise


class PodConnection:
    """Standard input and output of an attached pod, over a websocket whose messages begin with the number of a channel."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._ready = socket, b""

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), 1 << 15):
                self._socket.send(bytes([STDIN]) + data[start : start + (1 << 15)], opcode=ABNF.OPCODE_BINARY)
        except WebSocketException as error:
            raise OSError(str(error)) from None

    def recv(self, most: int) -> bytes:
        try:
            while not self._ready:
                kind, frame = self._socket.recv_data_frame(True)
                if kind == ABNF.OPCODE_CLOSE:
                    return b""
                if kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data and frame.data[0] == STDOUT:
                    self._ready = bytes(frame.data[1:])
        except WebSocketTimeoutException as error:
            raise TimeoutError(str(error)) from None
        except WebSocketException:
            return b""
        part, self._ready = self._ready[:most], self._ready[most:]
        return part

    def close(self) -> None:
        with contextlib.suppress(WebSocketException, OSError):
            self._socket.close(timeout=1)


def _load_kubeconfig() -> None:
    """Use the cluster that the kubeconfig names. Raises ConfigException."""
    try:
        config.load_kube_config()
    except ConfigException:
        raise
    except Exception as error:  # a damaged file can cause any of these errors
        raise ConfigException(f"no usable kubeconfig: {_why(error)}") from None


def _unscheduled(status: Any) -> str | None:
    return next((each.message for each in status.conditions or [] if each.reason == "Unschedulable"), None)


def _why(error: Exception) -> str:
    return f"HTTP {error.status} {error.reason}" if isinstance(error, ApiException) else " ".join(str(error).split())
