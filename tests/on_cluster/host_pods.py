"""Pods that run this machine's Python: its folders over the empty ones of a tiny image, and its network.

For a cluster whose node is this machine, so that nothing has to be built, pushed or pulled. What is written below the project goes with
the pod, as it does with any pod: nothing but the artifact store takes data from one to the next.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

IMAGE = os.environ.get("CLUSTER_TEST_IMAGE", "docker.io/library/host:1")
SYSTEM = ("/usr", "/lib", "/lib64")
PROJECT = "/app"
"""Where images that ZenML builds have the project."""
WRITTEN = ("data", "models", "outputs")
CUSTOMIZED = Path(__file__).parent / "pod_python"


def python_folders() -> list[str]:
    """The folders that this interpreter, its environments and its libraries are in, none inside another."""
    environments = {str(Path(entry).parents[2]) for entry in sys.path if entry.endswith("site-packages")}
    folders = sorted({sys.prefix, sys.base_prefix, *environments})
    return [folder for folder in folders if not any(folder.startswith(f"{other}/") for other in folders)]


def pod_settings(project: Path, *folders: Path, **more: Any) -> dict[str, Any]:
    """ZenML's pod settings for such pods.

    `project` has the code, `folders` are mounted as well, at their own paths, `more` are further settings.
    """
    mounts = {
        path: path for path in (*SYSTEM, *python_folders(), str(CUSTOMIZED), *map(str, folders)) if Path(path).is_dir()
    }
    mounts[PROJECT] = str(project)
    environment = {
        "PATH": f"{sys.prefix}/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{PROJECT}:{CUSTOMIZED}",
        "HOME": "/root",
        "USER": "root",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "ZENML_ENABLE_RICH_TRACEBACK": "false",
        # What images/cpu.Dockerfile sets
        "ZENML_CUSTOM_SOURCE_ROOT": PROJECT,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "WANDB_ERROR_REPORTING": "false",
    }
    for folder in WRITTEN:
        (project / folder).mkdir(exist_ok=True)  # a mount point has to be there
    return {
        "additional_pod_spec_args": {"host_network": True},
        "volumes": [
            *({"name": f"host-{index}", "hostPath": {"path": path}} for index, path in enumerate(mounts.values())),
            *({"name": folder, "emptyDir": {}} for folder in WRITTEN),
        ],
        "volume_mounts": [
            *({"name": f"host-{index}", "mountPath": path, "readOnly": True} for index, path in enumerate(mounts)),
            *({"name": folder, "mountPath": f"{PROJECT}/{folder}"} for folder in WRITTEN),
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        **more,
    }
