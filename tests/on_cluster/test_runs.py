"""The real training as pods: without a GPU, with one, killed in the middle, with its whole node, and served."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from zenml.integrations import kubernetes
from zenml.models import StepRunResponse

from cluster.flavors import PENDING
from pipelines.inference import DEPLOYMENT, inference_pipeline
from steps.artifact_names import MODEL_NAME
from tests.checkout import ROOT, Checkout
from tests.on_cluster.cluster_runs import cluster_config, eventually
from tests.on_cluster.host_pods import IMAGE, pod_settings
from tests.on_cluster.live_stack import Stack
from training.record.history import HISTORY_FILE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

SMALL = {
    "synthetic_train_inboxes": 1,
    "synthetic_test_inboxes": 1,
    "synthetic_questions_per_inbox": 24,
    "demonstrations": 4,
    "max_steps": 14,
    "validate_every": 0,
    "groups_per_step": 1,
    "max_extra_groups": 0,
    "rollouts_per_group": 2,
    "max_tokens": 24,
    "lora_layers": 2,
    "max_context": 8192,
}
TEMPLATE = Path(kubernetes.__file__).parent / "templates" / "kubernetes" / "deployment.yaml.j2"
PORT = DEPLOYMENT.uvicorn_port
JSON = {"Content-Type": "application/json"}


def train_steps(stack: Stack) -> list[StepRunResponse]:
    """Attempts at the training step of the newest run, the first first."""
    runs = stack.client.list_pipeline_runs(pipeline="training_pipeline", sort_by="desc:created", size=1).items
    if not runs:
        return []
    found = stack.client.list_run_steps(
        pipeline_run_id=runs[0].id, name="train_agent", exclude_retried=False, hydrate=True
    )
    return sorted(found.items, key=lambda step: step.version)


def published_rows(stack: Stack) -> int:
    """Finished steps of the training in the artifact store, the warm start among them."""
    files = [key for key in stack.objects() if "/training_runs/" in key and key.endswith(HISTORY_FILE)]
    return stack.bucket.Object(files[0]).get()["Body"].read().count(b"\n") if files else 0


def kill_pods(*names: str) -> None:
    """SIGKILL to the processes of pods, as the kernel does it when memory runs out, or power when it does."""
    marks = [f"POD_NAME={name}\0".encode() for name in names]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            if any(mark in environment for mark in marks):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


@pytest.fixture(scope="module")
def trained(stack: Stack, project: Checkout, tiny_base: Path) -> Iterator[dict[str, Any]]:
    """One training: it waits for a GPU, gets one, is killed, goes on, loses all its pods at once and goes on again.

    What was seen on the way.
    """
    stack.cluster.set_gpus(0)
    seen: dict[str, Any] = {}
    config = cluster_config(project, "training_k8s.yaml", tiny_base, base_model=str(tiny_base), **SMALL)
    run = project.start_alone("--pipeline", "train", "--config", config)  # its output is read while it runs
    try:
        waiting = eventually(lambda: [s for s in train_steps(stack) if PENDING in s.run_metadata], run)
        seen["pending"] = waiting[0].run_metadata[PENDING]
        assert run.stdout is not None
        said = [next((line for line in run.stdout if "train_agent: pending: " in line), "")]
        stack.cluster.set_gpus(1)
        seen["published"] = eventually(lambda: (n := published_rows(stack)) >= 4 and n, run)
        pods = [pod.metadata.name for pod in stack.cluster.pods(f"step_run_id={waiting[0].id}")]
        kill_pods(pods[-1])
        rows = seen["published again"] = [published_rows(stack)]
        eventually(lambda: rows.append(published_rows(stack)) or rows[-1] >= seen["published"] + 4, run)
        alive = [pod.metadata.name for pod in stack.cluster.pods() if pod.status.phase == "Running"]
        seen["lost"] = alive
        kill_pods(*alive)
        seen["output"] = "".join([*said, *run.stdout])
        run.wait(timeout=60)
    finally:
        run.kill()
        stack.cluster.set_gpus(0)
    assert run.returncode == 0, seen
    yield seen


def test_a_pod_that_waits_for_a_gpu_says_so(trained: dict[str, Any]) -> None:
    assert "Insufficient nvidia.com/gpu" in trained["pending"]
    assert "train_agent: pending: " in trained["output"] and "Insufficient nvidia.com/gpu" in trained["output"]


def test_a_killed_training_continues_after_the_last_published_step(stack: Stack, trained: dict[str, Any]) -> None:
    killed, lost, last = train_steps(stack)
    assert (killed.status.value, lost.status.value, last.status.value) == ("retried", "retried", "completed")
    history = last.outputs["training_history"][0].load()
    assert [row["step"] for row in history] == list(range(SMALL["max_steps"] + 1)), (
        "each step once, the warm start first"
    )
    assert min(trained["published again"]) >= trained["published"], "the second attempt began anew"


def test_a_lost_node_costs_no_run(stack: Stack, trained: dict[str, Any]) -> None:
    """All pods at once: the orchestrator's, the one that waits for the training's, and the training's."""
    assert len(trained["lost"]) == 3
    version = stack.client.list_model_versions(MODEL_NAME, sort_by="desc:created", hydrate=True).items[0]
    assert version.run_metadata["training"]["resumed_from"] >= trained["published again"][-1] - 1


def test_artifacts_and_logs_are_in_s3(stack: Stack, trained: dict[str, Any]) -> None:
    keys = stack.objects()
    for part in ("create_database/mail_database", "load_scenarios/scenarios", "train_agent/checkpoint", "/logs/"):
        assert any(part in key for key in keys), part
    assert "adapter_model.safetensors" in str(keys) and "mails.sqlite" in str(keys)
    assert any("/base_models/" in key and key.endswith("published.json") for key in keys), (
        "the training's pod had it from there"
    )


def test_a_gpu_evaluates(stack: Stack, project: Checkout, trained: dict[str, Any]) -> None:
    config = cluster_config(project, "evaluation_k8s.yaml", eval_limit=2, judge="exact")
    stack.cluster.set_gpus(1)
    try:
        done = project.run("--pipeline", "eval", "--config", config, idle_seconds=1500)
    finally:
        stack.cluster.set_gpus(0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "to production: " in done.stdout
    asked = stack.client.list_run_steps(name="run_inference", hydrate=True).items[0]
    assert stack.cluster.pods(f"step_run_id={asked.id}"), "it ran on the step operator"


def test_a_deployment_answers(stack: Stack, project: Checkout, tiny_base: Path, trained: dict[str, Any]) -> None:
    settings = yaml.safe_load((ROOT / "configs" / "deployment_k8s.yaml").read_text())["settings"]
    settings["docker"] = {"skip_build": True, "parent_image": IMAGE, "allow_download_from_artifact_store": False}
    settings["resources"] = {"cpu_count": 0.1, "memory": "400MiB", "min_replicas": 1, "max_replicas": 1}
    of_product = settings["deployer"]["pod_settings"]["env"]
    settings["deployer"]["pod_settings"] = pod_settings(project.folder, tiny_base, additional_pod_spec_args={})
    # What the pipeline sets itself would stand there twice, which the API server does not take.
    set_by_pipeline = inference_pipeline.configuration.environment
    pods = settings["deployer"]["pod_settings"]
    pods["env"] = [entry for entry in pods["env"] if entry["name"] not in set_by_pipeline] + of_product
    # ZenML's template renders additional_pod_spec_args to something that is no YAML.
    template = project.folder / "deployment.yaml.j2"
    pod = "      containers:\n"
    template.write_text(TEMPLATE.read_text().replace(pod, f"      hostNetwork: true\n{pod}"))
    settings["deployer"]["custom_deployment_template_file"] = str(template)
    file = project.folder / "deployment.yaml"
    file.write_text(yaml.safe_dump({"settings": settings}))
    try:
        done = project.run(
            "--pipeline", "deploy", "--config", str(file), "--name", "on-cluster", "--unpromoted", idle_seconds=1500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        inbox = stack.client.get_artifact_version("scenarios").load()[0].inbox_address
        asked = {"question": "Where is it?", "inbox_address": inbox, "query_date": "2035-01-01"}
        key = stack.client.get_deployment("on-cluster").auth_key
        headers = JSON | {"Authorization": f"Bearer {key}"}
        request = Request(f"http://127.0.0.1:{PORT}/invoke", json.dumps({"parameters": asked}).encode(), headers)
        with urlopen(request, timeout=600) as response:
            answer = json.load(response)
        assert response.status == 200 and answer["question"] == asked["question"] and "source_ids" in answer
    finally:
        with contextlib.suppress(KeyError):
            stack.client.delete_deployment("on-cluster", force=True)
