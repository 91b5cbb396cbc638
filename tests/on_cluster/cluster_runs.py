"""The product's configurations for pods of this machine, and waiting for what happens on the cluster."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from cluster.flavors import FLAVOR
from configs.profiles import read_profile
from tests.checkout import ROOT, Checkout
from tests.on_cluster.host_pods import IMAGE, pod_settings
from tests.settings import in_sections

Found = TypeVar("Found")


def eventually(look: Callable[[], Found], process: subprocess.Popen[str] | None = None, seconds: float = 5400) -> Found:
    """What `look` finds as soon as it is true. Fails when `process` ends or the time is over before."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, look
        time.sleep(0.5)
    return found


def cluster_config(
    checkout: Checkout,
    product: str,
    *folders: Path,
    gpu: bool = True,
    orchestrator: Mapping[str, Any] = MappingProxyType({}),
    **values: Any,
) -> str:
    """`values` with the ZenML settings of the product's configuration, less what needs a GPU, a registry or a large model.

    `folders` are mounted in the orchestrator's pods and in no others. Without `gpu`, every step runs on the orchestrator.
    `orchestrator` has further settings of the orchestrator.
    """
    of_product = read_profile(ROOT / "configs" / product)
    config = in_sections(**values) | {key: of_product[key] for key in ("settings", *(["step_settings"] if gpu else []))}
    docker = {"skip_build": True, "parent_image": IMAGE, "allow_download_from_artifact_store": False}
    pods, gpus = pod_settings(checkout.folder, *folders), {"nvidia.com/gpu": "1"}
    config["settings"]["docker"] = docker
    # The orchestrator's pod would import each step's code once more, only to see whether the step was ever run.
    config["settings"][f"orchestrator.{FLAVOR}"] |= {
        "pod_settings": pods,
        "orchestrator_pod_settings": pods,
        "prevent_orchestrator_pod_caching": True,
        "job_monitoring_interval": 1,
        **orchestrator,
    }
    for step in config.get("step_settings", {}).values():
        step["settings"]["docker"] = docker
        step["settings"][f"step_operator.{FLAVOR}"]["pod_settings"] = {
            **pod_settings(checkout.folder),
            "resources": {"requests": {"memory": "400Mi", **gpus}, "limits": gpus},
        }
    file = checkout.folder / product
    file.write_text(yaml.safe_dump(config))
    return str(file)
