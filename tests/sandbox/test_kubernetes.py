"""Workspaces as pods: the template file, and on a real cluster isolation, cells, the reaper and the hard lifetime."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client as k8s
from kubernetes import config as kubeconfig

from sandbox.checks import Check, run_checks
from sandbox.containers import ContainerRunner
from sandbox.errors import NoIsolation, NotStarted, Unusable, WorkspaceLost
from sandbox.kubernetes_engine import KubernetesEngine, PodTemplate
from sandbox.limits import Limits
from sandbox.settings import SandboxSettings
from sandbox.workspace import Changes, Image

FILES = {"target.py": "def double(number):\n    return number + 1\n"}
HOST = "docker.io/library/host:1"


def test_a_template_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    with pytest.raises(ValueError, match="pod_template=.*No such file"):
        PodTemplate.load(file)
    file.write_text("containers: []")
    with pytest.raises(ValueError, match="containers: Extra inputs are not permitted"):
        PodTemplate.load(file)
    for text, reason in (
        ("[1, 2]", ": Input should be a valid dictionary"),
        ("[" * 10_000, ": maximum recursion depth"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"^pod_template={file}{reason}"):
            PodTemplate.load(file)
    file.write_text("spec: {nodeSelector: {kind: untrusted}}")
    assert PodTemplate.load(file).spec == {"nodeSelector": {"kind": "untrusted"}}
    assert PodTemplate.load(None) == PodTemplate()


def test_no_cluster_is_no_isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "nowhere"))
    with pytest.raises(NoIsolation, match="no Kubernetes cluster answers"):
        KubernetesEngine("here-8100", "default", PodTemplate(), start_seconds=10)


@pytest.mark.parametrize("content", ["{a: [", "[1, 2]", "hello", "\\xff", "users: 5"])
def test_a_damaged_kubeconfig_is_no_isolation(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    with pytest.raises(NoIsolation, match="no Kubernetes cluster answers") as refused:
        KubernetesEngine("here-8100", "default", PodTemplate(), start_seconds=10)
    assert "\n" not in str(refused.value)


def test_an_api_server_that_goes_away_is_no_error_of_the_service() -> None:
    engine = KubernetesEngine.__new__(KubernetesEngine)
    refuses = k8s.Configuration(host="http://127.0.0.1:9")
    refuses.retries = False
    engine._core = k8s.CoreV1Api(k8s.ApiClient(refuses))
    engine._namespace, engine._template, engine._labels, engine._start_seconds = "default", PodTemplate(), {}, 1.0
    with pytest.raises(NotStarted, match="no pod of a:1: .*127.0.0.1"):
        engine.start("a:1", ["sh"], Limits(), name="a", seconds=1)
    engine._remove("a")
    with pytest.raises(NoIsolation, match="cannot be listed"):
        engine.reap()


def host_template(folder: Path) -> Path:
    """Pods with this machine's Python, for a cluster whose one node is this machine and that has no pod network."""
    folders = ["/usr", "/lib", "/lib64", sys.base_prefix]
    mounts = [{"name": f"host-{index}", "mountPath": path, "readOnly": True} for index, path in enumerate(folders)]
    template = {
        "spec": {
            "hostNetwork": True,
            "volumes": [{"name": f"host-{index}", "hostPath": {"path": path}} for index, path in enumerate(folders)],
        },
        "container": {
            "volumeMounts": mounts,
            "env": [{"name": "PATH", "value": f"{sys.base_prefix}/bin:/usr/bin:/bin"}],
            # Without a runtime's profile the workspace itself takes the network away from its code.
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        },
    }
    file = folder / "pod.yaml"
    file.write_text(yaml.safe_dump(template))
    return file


@pytest.fixture(scope="module")
def namespace(pytestconfig: pytest.Config) -> Iterator[str]:
    if "cluster" not in pytestconfig.getoption("markexpr"):
        pytest.skip("somebody's cluster is not used by the way: select these tests with -m cluster")
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: set KUBECONFIG")
    kubeconfig.load_kube_config()
    name = f"sandbox-{uuid.uuid4().hex[:6]}"
    k8s.CoreV1Api().create_namespace({"metadata": {"name": name}})
    yield name
    k8s.CoreV1Api().delete_namespace(name)


def opened(namespace: str, folder: Path, owner: str = "here-8100", **changed: object) -> ContainerRunner:
    limits = Limits(wall_seconds=60, cpu_seconds=30)
    settings = SandboxSettings(
        runner="kubernetes", image=HOST, namespace=namespace, limits=limits, start_seconds=300, **changed
    )
    template = PodTemplate.load(host_template(folder))
    return ContainerRunner(KubernetesEngine(owner, namespace, template, start_seconds=settings.start_seconds), settings)


def pods(namespace: str) -> list[str]:
    return [pod.metadata.name for pod in k8s.CoreV1Api().list_namespaced_pod(namespace).items]


@pytest.mark.cluster
def test_a_workspace_in_a_pod_is_confined_and_does_what_a_local_one_does(namespace: str, tmp_path: Path) -> None:
    runner = opened(namespace, tmp_path)
    began = time.monotonic()
    runner.require_isolation()
    print(f"isolation tried: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    workspace = runner.open(FILES)
    print(f"workspace: {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    assert workspace.exec("import target\nnumber = 20\ntarget.double(4)").output == "5\n"
    print(f"cell: {time.monotonic() - began:.3f} s")
    assert workspace.exec("number").output == "20\n"
    assert "bytes left out" in workspace.exec("print('x' * 1_000_000)").output
    assert workspace.exec("import os\nos._exit(3)").ended == "the REPL exited with code 3"
    assert workspace.exec("import os\nsorted(name for name in os.environ if 'KUBE' in name)").output == "[]\n"
    repaired = {"target.py": "def double(number):\n    return 2 * number\n"}
    workspace.write_files(repaired)
    assert workspace.changes() == Changes(changed=repaired)
    workspace.close()
    [verdict] = run_checks(
        runner, FILES, Changes(changed=repaired), [Check(code="import target\ntarget.double(4)", expected="8")]
    )
    assert verdict.passed
    with pytest.raises((Unusable, NotStarted), match="image nowhere/nothing:1"):  # a cluster may reach no registry
        runner.open(image=Image(name="nowhere/nothing:1"))
    runner.close()
    until = time.monotonic() + 600
    while pods(namespace) and time.monotonic() < until:
        time.sleep(1)
    assert pods(namespace) == []


@pytest.mark.cluster
def test_a_pod_that_does_not_start_says_what_the_cluster_says(namespace: str, tmp_path: Path) -> None:
    missing = {"name": "missing", "secret": {"secretName": "nowhere"}}
    mounts = [{"name": "missing", "mountPath": "/opt"}]
    template = PodTemplate(spec={"volumes": [missing], "hostNetwork": True}, container={"volumeMounts": mounts})
    engine = KubernetesEngine("here-8300", namespace, template, start_seconds=20)
    with pytest.raises(
        NotStarted, match=r'does not run after 20 s \(ContainerCreating; last warning: .*secret "nowhere" not found'
    ):
        engine.start(HOST, ["sh"], Limits(), name="waits", seconds=60)


@pytest.mark.cluster
def test_pods_of_a_service_that_is_gone_are_removed_and_end_by_themselves(namespace: str, tmp_path: Path) -> None:
    left = opened(namespace, tmp_path)
    workspace = left.open(FILES)
    other = opened(namespace, tmp_path, owner="here-8200")
    kept = other.open(FILES)
    assert len(pods(namespace)) == 2
    opened(namespace, tmp_path).require_isolation()
    until = time.monotonic() + 600
    with pytest.raises(WorkspaceLost):
        while time.monotonic() < until:  # a busy node takes a while to end a pod that is deleted
            workspace.exec("1")
    assert kept.exec("1 + 1").output == "2\n"
    [pod] = [
        pod
        for pod in k8s.CoreV1Api().list_namespaced_pod(namespace).items
        if pod.metadata.labels["owner"] == "here-8200"
    ]
    assert pod.spec.active_deadline_seconds >= 900
    kept._connection.close()  # what happens when the service dies
    until = time.monotonic() + 600
    while (
        status := k8s.CoreV1Api().read_namespaced_pod_status(pod.metadata.name, namespace).status.phase
    ) == "Running":
        assert time.monotonic() < until, "the pod goes on without its service"
        time.sleep(1)
    assert status in ("Succeeded", "Failed")
    other.close()
