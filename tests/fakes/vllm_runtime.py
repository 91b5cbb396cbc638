"""ART's vLLM environment, built by ART's own installer from stand-in wheels."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest.mock import patch

from art import vllm_runtime

PROJECT = """[project]
name = "art-vllm-runtime"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["vllm @ {vllm}"]
"""


def install_runtime(folder: Path, vllm: str) -> None:
    """Install a runtime whose `vllm` command runs the source `vllm`, in the folder `cache` of `folder`."""
    bundle = folder / "bundle"
    bundle.mkdir(parents=True)
    command = "def main():\n" + "".join(f"    {line}\n" for line in vllm.strip().splitlines())
    package = _wheel(bundle, "vllm", "vllm", "vllm.entrypoints.cli.main", command)
    server = _wheel(bundle, "art_vllm_runtime", vllm_runtime.RUNTIME_SERVER, "art_vllm_runtime", "def main(): ...\n")
    (bundle / "pyproject.toml").write_text(PROJECT.format(vllm=package.as_uri()))
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "UV_PYTHON": sys.executable}
    with patch.dict(os.environ, here | {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(folder / "uv")}):
        subprocess.run(["uv", "lock", "--project", str(bundle)], check=True, capture_output=True)
        digests = {file: hashlib.sha256((bundle / file).read_bytes()).hexdigest() for file in os.listdir(bundle)}
        manifest = vllm_runtime.VllmRuntimeManifest(
            art_version="0",
            runtime_version="0.1.0",
            python=">=3.11",
            runtime_wheel=server.name,
            runtime_wheel_sha256=digests[server.name],
            pyproject_sha256=digests["pyproject.toml"],
            lockfile_sha256=digests["uv.lock"],
        )
        vllm_runtime._install_managed_runtime(
            bundle_dir=bundle,
            cache_root=folder / "cache",
            manifest=manifest,
            manifest_hash=vllm_runtime._manifest_hash(manifest),
        )


def _wheel(folder: Path, package: str, command: str, module: str, source: str) -> Path:
    path = folder / f"{package}-0.1.0-py3-none-any.whl"
    described = f"{package}-0.1.0.dist-info"
    parts = module.split(".")
    files = {"/".join([*parts[:depth], "__init__.py"]): "" for depth in range(1, len(parts))}
    files |= {
        "/".join(parts) + ("/__init__.py" if len(parts) == 1 else ".py"): source,
        f"{described}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n",
        f"{described}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{described}/entry_points.txt": f"[console_scripts]\n{command} = {module}:main\n",
    }
    record = f"{described}/RECORD"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(record, "".join(f"{name},,\n" for name in [*files, record]))
    return path
