"""configs/training_k8s.yaml and what extends it against ZenML's and Kubernetes' own classes, which would silently ignore unknown keys."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient
from pydantic import BaseModel, ValidationError
from zenml.config import DockerSettings
from zenml.config.step_configurations import StepConfigurationUpdate
from zenml.integrations.kubernetes import serialization_utils
from zenml.integrations.kubernetes.flavors import KubernetesOrchestratorSettings, KubernetesStepOperatorSettings
from zenml.integrations.kubernetes.manifest_utils import build_pod_manifest
from zenml.integrations.kubernetes.pod_settings import KubernetesPodSettings
from zenml.utils.settings_utils import is_valid_setting_key

from cluster.flavors import FLAVOR
from configs.loading import load_config
from configs.profiles import read_profile
from training.backends import gpus_occupied, require_effect
from training.backends.memory import gpu_parts

ROOT = Path(__file__).parents[2]
FILE = ROOT / "configs" / "training_k8s.yaml"
TWO_GPUS = ROOT / "configs" / "training_two_gpus_k8s.yaml"
QWEN_7B_BYTES = 15_231_233_024
"""Weights of Qwen2.5-7B-Instruct in bfloat16."""
KINDS: dict[str, type[BaseModel]] = {
    "docker": DockerSettings,
    f"orchestrator.{FLAVOR}": KubernetesOrchestratorSettings,
    f"step_operator.{FLAVOR}": KubernetesStepOperatorSettings,
}
KUBERNETES_KINDS = {
    "affinity": "V1Affinity",
    "resources": "V1ResourceRequirements",
    "tolerations": "V1Toleration",
    "volumes": "V1Volume",
    "volume_mounts": "V1VolumeMount",
    "env_from": "V1EnvFromSource",
    "container_security_context": "V1SecurityContext",
}


def check(values: dict[str, Any], kind: type[BaseModel]) -> None:
    """Raises for a key or value that `kind`, or the Kubernetes object behind it, does not know."""
    kind.model_validate(values)
    unknown = values.keys() - kind.model_fields.keys()
    assert not unknown, f"{kind.__name__} has no {unknown}"
    for key, value in values.items():
        if key in ("pod_settings", "orchestrator_pod_settings"):
            check(value, KubernetesPodSettings)
        if kind is KubernetesPodSettings:
            for part in value if isinstance(value, list) else [value]:
                # Raises KeyError for unknown keys at any depth, which pod settings only warn about.
                serialization_utils.deserialize_kubernetes_model(part, KUBERNETES_KINDS[key])


def check_all(config: dict[str, Any]) -> None:
    for key, values in config["settings"].items():
        assert is_valid_setting_key(key), key
        check(values, KINDS[key])
    for step in config["step_settings"].values():
        StepConfigurationUpdate.model_validate(step)
        assert not step.keys() - StepConfigurationUpdate.model_fields.keys()
        for key, values in step["settings"].items():
            assert is_valid_setting_key(key), key
            check(values, KINDS[key])


@pytest.fixture
def config() -> dict[str, Any]:
    return copy.deepcopy(read_profile(FILE))


def train_pod(config: dict[str, Any]) -> dict[str, Any]:
    return config["step_settings"]["train_agent"]["settings"][f"step_operator.{FLAVOR}"]["pod_settings"]


def test_every_key_is_known(config: dict[str, Any]) -> None:
    check_all(config)
    loaded = load_config(FILE, []).trainer
    assert (loaded.base_model, loaded.backend, loaded.ruler_model) == (
        "Qwen/Qwen2.5-7B-Instruct",
        "local",
        "openai/o4-mini",
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["settings", "docker", "dockerfil"], "x"),
        (["settings", "docker", "python_package_installer"], "conda"),
        (["settings", f"orchestrator.{FLAVOR}", "concurrency_policy"], "Never"),
        (["settings", f"orchestrator.{FLAVOR}", "pod_settings", "env_form"], []),
        (["settings", "stepoperator"], {}),
        (["step_settings", "train_agent", "step_operators"], True),
        (["step_settings", "train_agent", "settings", f"step_operator.{FLAVOR}", "podsettings"], {}),
        (["step_settings", "train_agent", "settings", f"step_operator.{FLAVOR}", "pod_settings", "gpu"], 1),
    ],
)
def test_the_check_sees_typing_errors(config: dict[str, Any], path: list[str], value: Any) -> None:
    *parents, key = path
    place = config
    for parent in parents:
        place = place[parent]
    place[key] = value
    with pytest.raises((AssertionError, KeyError, ValidationError)):
        check_all(config)


def test_the_check_sees_typing_errors_inside_kubernetes_objects(config: dict[str, Any]) -> None:
    train_pod(config)["volumes"][0]["emptyDir"]["sizelimit"] = "1Gi"
    with pytest.raises(KeyError, match="sizelimit"):
        check_all(config)


def test_pod_of_the_training_step(config: dict[str, Any]) -> None:
    """The pod that ZenML makes of these settings asks for one GPU, on a GPU node, with shared memory and the keys."""
    pod = build_pod_manifest(
        pod_name="train",
        image_name="image",
        command=["python"],
        args=[],
        privileged=False,
        pod_settings=KubernetesPodSettings.model_validate(train_pod(config)),
    )
    spec = ApiClient().sanitize_for_serialization(pod)["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert container["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert container["envFrom"] == [{"secretRef": {"name": "email-agent-keys"}}]
    assert spec["volumes"] == [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {expression["key"].split("/")[0] for expression in term["matchExpressions"]} == {"nvidia.com"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"


@pytest.mark.parametrize("name", ["training_k8s.yaml", "evaluation_k8s.yaml", "training_two_gpus_k8s.yaml"])
def test_a_node_that_the_affinity_admits_passes_the_preflight_check(name: str) -> None:
    settings = load_config(TWO_GPUS if name == TWO_GPUS.name else FILE, []).for_training()
    needed = max(sum(parts.values()) for parts in gpu_parts(QWEN_7B_BYTES / 2, settings))
    steps = read_profile(ROOT / "configs" / name)["step_settings"]
    assert set(steps) >= {"run_inference", "ask_production"}, "every step that runs the model has a GPU"
    for step in steps.values():
        pod = step["settings"][f"step_operator.{FLAVOR}"]["pod_settings"]
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        [memory] = [rule for rule in term["matchExpressions"] if rule["key"] == "nvidia.com/gpu.memory"]
        assert memory["operator"] == "Gt" and int(memory["values"][0]) * 2**20 >= needed
        assert int(memory["values"][0]) < 46_068, "cards of 48 GB are enough"


def test_the_training_pod_has_the_gpus_that_its_settings_occupy() -> None:
    for file, gpus in ((FILE, 1), (TWO_GPUS, 2)):
        check_all(profile := read_profile(file))
        settings = load_config(file, []).for_training()
        require_effect(settings)
        resources = train_pod(profile)["resources"]
        assert gpus_occupied(settings) == gpus == len(gpu_parts(QWEN_7B_BYTES / 2, settings))
        assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == str(gpus)
    one = copy.deepcopy(read_profile(FILE))
    for bound in ("requests", "limits"):
        train_pod(one)["resources"][bound]["nvidia.com/gpu"] = "2"
    one["trainer"]["max_steps_off_policy"] = 1
    assert one == read_profile(TWO_GPUS), "it differs in nothing else"


def test_gpu_settings_stand_only_under_the_step_operator(config: dict[str, Any]) -> None:
    assert "gpu" not in yaml.safe_dump({k: v for k, v in config["settings"].items() if k != "docker"})
    assert config["step_settings"]["train_agent"]["step_operator"] is True


def test_images(config: dict[str, Any]) -> None:
    """The GPU's for the step with the GPU, with the torch and CUDA of its requirements; the other one for everything else."""
    gpu = config["step_settings"]["train_agent"]["settings"]["docker"]
    assert (
        config["settings"]["docker"]["dockerfile"] == "images/cpu.Dockerfile"
        and gpu["dockerfile"] == "images/gpu.Dockerfile"
    )
    requirements = (ROOT / "requirements-gpu.txt").read_text()
    torch = re.search(r"^torch==(\S+)$", requirements, re.MULTILINE)
    base = re.search(
        r"^FROM pytorch/pytorch:([\d.]+)-cuda([\d.]+)-cudnn9-devel$",
        (ROOT / gpu["dockerfile"]).read_text(),
        re.MULTILINE,
    )
    assert torch and base and base[1] == torch[1]
    # The CUDA that this torch's wheels bring is checked where the requirements are resolved.
    assert f"CUDA {base[2]}" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("image", ["cpu", "gpu"])
def test_files_that_an_image_copies_exist(image: str) -> None:
    text = (ROOT / "images" / f"{image}.Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+) \.$", text, re.MULTILINE)
    assert copied and all((ROOT / name).is_file() for name in copied)
    assert "ZENML_CUSTOM_SOURCE_ROOT=/app" in text and "WORKDIR /app" in text


def test_same_training_as_on_one_machine(config: dict[str, Any]) -> None:
    local = read_profile(ROOT / "configs" / "training_local.yaml")
    assert {key: value for key, value in config.items() if key not in ("settings", "step_settings")} == local
