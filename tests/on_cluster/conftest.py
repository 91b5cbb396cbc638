"""A stack on the cluster that KUBECONFIG names: ZenML and S3 on loopback, and the project's pipelines as pods."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import boto3
import pytest
from zenml.client import Client
from zenml.config.global_config import GlobalConfiguration
from zenml.zen_stores.rest_zen_store import RestZenStoreConfiguration

from cluster.settings import StackSettings
from cluster.stack import components_of, register
from tests.checkout import Checkout
from tests.fakes.kubernetes import client as k8s
from tests.fakes.kubernetes import config as kubeconfig
from tests.on_cluster.live_stack import Cluster, Stack
from tests.on_cluster.servers import KEY, PASSWORD, s3_server, zenml_server

BUCKET = "artifacts"
ACCOUNT = "email-agent"


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster that KUBECONFIG names, with a new namespace and service account as docs/kubernetes.md makes them."""
    if "cluster" not in pytestconfig.getoption("markexpr"):
        pytest.skip("somebody's cluster is not used by the way: select these tests with -m cluster")
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: set KUBECONFIG")
    _, current = kubeconfig.list_kube_config_contexts()
    api = kubeconfig.new_client_from_config(context=current["name"])
    namespace = f"email-agent-{uuid.uuid4().hex[:6]}"
    core, rbac = k8s.CoreV1Api(api), k8s.RbacAuthorizationV1Api(api)
    core.create_namespace({"metadata": {"name": namespace}})
    core.create_namespaced_service_account(namespace, {"metadata": {"name": ACCOUNT}})
    core.create_namespaced_secret(
        namespace, {"metadata": {"name": "email-agent-keys"}, "stringData": {"OPENAI_API_KEY": "none"}}
    )
    rbac.create_namespaced_role_binding(
        namespace,
        {
            "metadata": {"name": f"{ACCOUNT}-edit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        },
    )
    yield Cluster(api, current["name"], namespace)
    core.delete_namespace(namespace)


@pytest.fixture(scope="session")
def stack(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    with zenml_server(folder) as server, s3_server(folder) as storage:
        bucket = boto3.resource(
            "s3", endpoint_url=storage, aws_access_key_id=KEY, aws_secret_access_key=KEY, region_name="us-east-1"
        ).create_bucket(Bucket=BUCKET)
        configuration = GlobalConfiguration()
        configuration.set_store(RestZenStoreConfiguration(url=server, username="default", password=PASSWORD))
        client = Client()
        client.create_secret("storage", {"aws_access_key_id": KEY, "aws_secret_access_key": KEY})
        settings = StackSettings(
            kubernetes_context=cluster.context,
            kubernetes_namespace=cluster.namespace,
            artifact_store=f"s3://{BUCKET}/email-agent",
            artifact_store_endpoint=storage,
            artifact_store_secret="storage",
            container_registry="registry.example.com/email-agent",
            service_type="ClusterIP",
        )
        register(settings.stack_name, components_of(settings))
        client.activate_stack(settings.stack_name)
        yield Stack(cluster, client, bucket, folder)
        configuration.set_default_store()


@pytest.fixture(scope="session")
def project(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose ZenML is the stack's."""
    made = Checkout.create(tmp_path_factory.mktemp("cluster") / "project")
    (made.folder / "models").unlink()
    return Checkout(made.folder, made.environment | {"ZENML_CONFIG_PATH": os.environ["ZENML_CONFIG_PATH"]})
