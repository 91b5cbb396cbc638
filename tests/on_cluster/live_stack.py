"""What the tests look into while the project's pipelines run on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenml.client import Client

from tests.fakes.kubernetes import client as k8s


@dataclass(frozen=True)
class Cluster:
    """A cluster and a namespace of the tests' own in it."""

    api: k8s.ApiClient
    context: str
    namespace: str

    def pods(self, selector: str = "") -> list[k8s.V1Pod]:
        found = k8s.CoreV1Api(self.api).list_namespaced_pod(self.namespace, label_selector=selector).items
        return sorted(found, key=lambda pod: pod.metadata.creation_timestamp)

    def set_gpus(self, count: int) -> None:
        """Makes the first node claim GPUs: on paper, nothing is injected into pods."""
        core = k8s.CoreV1Api(self.api)
        node = core.list_node().items[0].metadata.name
        labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.memory": "81559"}
        core.patch_node(node, {"metadata": {"labels": labels}})
        core.patch_node_status(node, {"status": {"capacity": {"nvidia.com/gpu": str(count)}}})


@dataclass(frozen=True)
class Stack:
    """The stack as a user has it: registered from settings, active, its bucket to look into."""

    cluster: Cluster
    client: Client
    bucket: Any
    folder: Path

    def objects(self, prefix: str = "") -> list[str]:
        """Keys in the artifact store."""
        return [entry.key for entry in self.bucket.objects.filter(Prefix=prefix)]
