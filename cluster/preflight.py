"""Preflight checks of the external requirements of a stack, one line each."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from uuid import uuid4

from kubernetes import client as k8s
from kubernetes import config as kubeconfig
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError
from zenml.client import Client
from zenml.container_engines.factory import get_container_engine
from zenml.enums import StackComponentType, StoreType

from cluster.flavors import with_retries
from cluster.settings import StackSettings
from cluster.stack import Component, components_of
from training.loopback import DIRECT

SECONDS = 10
"""Time limit of a request in seconds."""

GPU = "nvidia.com/gpu"
RIGHTS = (
    ("batch", "jobs", "create"),
    ("batch", "jobs", "list"),
    ("batch", "jobs", "patch"),
    ("batch", "jobs", "delete"),
    ("", "pods", "list"),
    ("", "pods/log", "get"),
    ("", "secrets", "delete"),
)
"""API group, resource and verb that a run needs inside the cluster: it starts, watches and stops its steps."""

OWN_RIGHTS = (
    ("batch", "jobs", "create"),
    ("batch", "cronjobs", "create"),
    ("batch", "cronjobs", "get"),
    ("batch", "cronjobs", "patch"),
    ("batch", "cronjobs", "delete"),
    ("", "pods", "list"),
    ("", "pods/log", "get"),
    ("", "secrets", "create"),
    ("", "secrets", "delete"),
    ("apps", "deployments", "create"),
    ("", "services", "create"),
)
"""The same for starting runs, schedules and deployments from outside the cluster."""


@dataclass(frozen=True)
class StackCheck:
    """Result of a check; `remedy` says what to do if it failed."""

    name: str
    ok: bool
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.name:<15}  {'ok' if self.ok else 'missing':<7}  {self.found}"
        return line if self.ok else f"{line}: {self.remedy}"


def check_stack(settings: StackSettings) -> Iterator[StackCheck]:
    """Run the checks one by one. Without access to the cluster, leave out those that need it.

    The check of the artifact store writes, reads and removes a small object. Raises BadInput if a setting without default
    is missing.
    """
    components = {component.kind: component for component in components_of(settings)}
    yield _zenml_server()
    access, api = _cluster_access(settings)
    yield access
    if api is not None:
        yield _asked("namespace", lambda: _namespace(settings, api))
        yield _asked("your rights", lambda: _own_rights(settings, api))
        yield _asked("service account", lambda: _service_account(settings, api))
        if settings.min_gpus:
            yield _asked("GPU nodes", lambda: _gpu_nodes(settings, api))
    yield _storage(settings, components[StackComponentType.ARTIFACT_STORE])
    yield _registry(settings)
    yield _image_builder()


def _zenml_server() -> StackCheck:
    store = Client().zen_store
    if store.type != StoreType.REST:
        return StackCheck(
            "ZenML server", False, "this client uses a local database, which pods cannot reach", "zenml login URL"
        )
    return StackCheck("ZenML server", True, store.url)


def _cluster_access(settings: StackSettings) -> tuple[StackCheck, k8s.ApiClient | None]:
    name, context = "cluster access", settings.kubernetes_context
    try:
        contexts = [entry["name"] for entry in kubeconfig.list_kube_config_contexts()[0]]
        if context not in contexts:
            known = (
                f"use one of {', '.join(contexts)} as kubernetes_context"
                if contexts
                else "add it with your cluster's tool"
            )
            return StackCheck(name, False, f"no context {context} in the kubeconfig", known), None
        api = kubeconfig.new_client_from_config(context=context)
    except Exception as error:  # a damaged file can cause any of these errors
        return StackCheck(
            name, False, f"no usable kubeconfig ({_one_line(error)})", "set KUBECONFIG to the cluster's file"
        ), None
    with_retries(api, False)
    try:
        version = k8s.VersionApi(api).get_code(_request_timeout=SECONDS)
    except ApiException as error:
        return StackCheck(name, False, f"context {context} was refused ({error.status})", "renew its credentials"), None
    except HTTPError as error:
        server = api.configuration.host
        return StackCheck(
            name, False, f"{server} does not answer ({_one_line(error)})", "start the cluster, or check the network"
        ), None
    return StackCheck(name, True, f"Kubernetes {version.git_version} in context {context}"), api


def _asked(name: str, check: Callable[[], StackCheck]) -> StackCheck:
    """Run a check. If the API server does not answer, the check fails with the reason."""
    try:
        return check()
    except ApiException as error:
        if error.status == 403:
            return StackCheck(name, False, "you may not look", "ask the cluster's administrator for the right")
        return StackCheck(name, False, f"the API server answers {error.status} {error.reason}", "try again")
    except HTTPError as error:
        return StackCheck(name, False, f"the API server stopped answering ({_one_line(error)})", "try again")


def _namespace(settings: StackSettings, api: k8s.ApiClient) -> StackCheck:
    name = settings.kubernetes_namespace
    try:
        k8s.CoreV1Api(api).read_namespace(name, _request_timeout=SECONDS)
    except ApiException as error:
        if error.status != 404:
            raise
        return StackCheck("namespace", False, f"there is no {name}", f"kubectl create namespace {name}")
    return StackCheck("namespace", True, name)


def _own_rights(settings: StackSettings, api: k8s.ApiClient) -> StackCheck:
    def allowed(attributes: k8s.V1ResourceAttributes) -> bool:
        review = k8s.V1SelfSubjectAccessReview(spec=k8s.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
        answer = k8s.AuthorizationV1Api(api).create_self_subject_access_review(review, _request_timeout=SECONDS)
        return answer.status.allowed

    if refused := _refused(OWN_RIGHTS, settings.kubernetes_namespace, allowed):
        remedy = f"ask for the cluster role edit in namespace {settings.kubernetes_namespace}"
        return StackCheck("your rights", False, f"you may not {refused}", remedy)
    return StackCheck("your rights", True, "jobs, schedules, deployments")


def _service_account(settings: StackSettings, api: k8s.ApiClient) -> StackCheck:
    name, account, namespace = "service account", settings.service_account, settings.kubernetes_namespace
    try:
        k8s.CoreV1Api(api).read_namespaced_service_account(account, namespace, _request_timeout=SECONDS)
    except ApiException as error:
        if error.status != 404:
            raise
        remedy = f"kubectl create serviceaccount {account} -n {namespace}"
        return StackCheck(name, False, f"there is no {account} in {namespace}", remedy)

    def allowed(attributes: k8s.V1ResourceAttributes) -> bool:
        user = f"system:serviceaccount:{namespace}:{account}"
        spec = k8s.V1SubjectAccessReviewSpec(user=user, resource_attributes=attributes)
        review = k8s.V1SubjectAccessReview(spec=spec)
        return k8s.AuthorizationV1Api(api).create_subject_access_review(review, _request_timeout=SECONDS).status.allowed

    if refused := _refused(RIGHTS, namespace, allowed):
        binding = f"{account}-edit --clusterrole=edit --serviceaccount={namespace}:{account} -n {namespace}"
        return StackCheck(name, False, f"{account} may not {refused}", f"kubectl create rolebinding {binding}")
    return StackCheck(name, True, account)


def _refused(
    rights: tuple[tuple[str, str, str], ...], namespace: str, allowed: Callable[[k8s.V1ResourceAttributes], bool]
) -> str:
    """Describe the missing rights; empty if there are none."""
    refused = []
    for group, resource, verb in rights:
        kind, _, part = resource.partition("/")
        attributes = k8s.V1ResourceAttributes(
            namespace=namespace, group=group, resource=kind, subresource=part or None, verb=verb
        )
        if not allowed(attributes):
            refused.append(f"{verb} {resource}")
    return ", ".join(refused)


def _gpu_nodes(settings: StackSettings, api: k8s.ApiClient) -> StackCheck:
    nodes = k8s.CoreV1Api(api).list_node(_request_timeout=SECONDS).items
    gpus = {node.metadata.name: int((node.status.allocatable or {}).get(GPU, "0")) for node in nodes}
    fitting = [name for name, count in gpus.items() if count >= settings.min_gpus]
    if not fitting:
        found = f"none of {len(nodes)} nodes offers {settings.min_gpus} {GPU}"
        remedy = "add a GPU node with NVIDIA's device plugin, or set min_gpus: 0 where nodes are added on demand"
        return StackCheck("GPU nodes", False, found, remedy)
    return StackCheck("GPU nodes", True, f"{len(fitting)} of {len(nodes)}: {', '.join(fitting[:3])}")


def _storage(settings: StackSettings, component: Component) -> StackCheck:
    name, place = "storage", str(settings.artifact_store)
    if missing := _missing_secret(settings.artifact_store_secret, "aws_access_key_id=… --aws_secret_access_key=…"):
        return StackCheck(name, False, *missing)
    try:
        from zenml.integrations.s3.artifact_stores import S3ArtifactStore
    except ImportError:
        return StackCheck(name, False, "s3fs and boto3 are not installed", "zenml integration install s3 -y")
    from zenml.integrations.s3.flavors.s3_artifact_store_flavor import S3ArtifactStoreConfig

    now, probe = datetime.now(UTC), f"{place.rstrip('/')}/preflight-{uuid4().hex}"
    store = S3ArtifactStore(
        name=component.name,
        id=uuid4(),
        config=S3ArtifactStoreConfig(
            **component.configuration, config_kwargs={"connect_timeout": SECONDS, "retries": {"max_attempts": 1}}
        ),
        flavor=component.flavor,
        type=component.kind,
        user=None,
        created=now,
        updated=now,
    )
    try:
        with store.open(probe, "wb") as file:
            file.write(b"preflight")
        with store.open(probe, "rb") as file:
            file.read()
        store.remove(probe)
    except Exception as error:  # botocore, aiohttp and s3fs each raise their own errors
        remedy = "create the bucket, or check artifact_store_endpoint and the rights of artifact_store_secret"
        return StackCheck(name, False, f"{place} cannot be written and read ({_one_line(error)})", remedy)
    return StackCheck(name, True, f"{place} can be written and read from here")


def _registry(settings: StackSettings) -> StackCheck:
    name, uri = "registry", str(settings.container_registry)
    if missing := _missing_secret(settings.container_registry_secret, "username=… --password=…"):
        return StackCheck(name, False, *missing)
    host = uri.partition("/")[0]
    address = "registry-1.docker.io" if host == "docker.io" else host
    # Like docker: plain HTTP, without a proxy, for registries on this machine only.
    here = address.partition(":")[0] in ("localhost", "127.0.0.1")
    try:
        if here:
            DIRECT.open(f"http://{address}/v2/", timeout=SECONDS).close()
        else:
            urllib.request.urlopen(f"https://{address}/v2/", timeout=SECONDS).close()
    except urllib.error.HTTPError as error:
        if error.code != 401:  # a registry that asks for credentials exists
            return StackCheck(
                name, False, f"{address} answers {error.code}, not as a registry does", "check container_registry"
            )
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return StackCheck(name, False, f"{address} does not answer ({_one_line(reason)})", "check container_registry")
    return StackCheck(name, True, f"{address} answers")


def _image_builder() -> StackCheck:
    try:
        engine = get_container_engine()
    except RuntimeError:
        return StackCheck(
            "image builder", False, "neither docker nor podman answers on this machine", "install and start one"
        )
    return StackCheck("image builder", True, f"{engine.engine_type.value} on this machine")


def _missing_secret(secret: str | None, values: str) -> tuple[str, str] | None:
    if secret is None:
        return None
    try:
        Client().get_secret_by_name_and_private_status(secret)
    except (KeyError, NotImplementedError):
        return f"there is no ZenML secret {secret}", f"zenml secret create {secret} --{values}"
    return None


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
