"""ART's vLLM environment, which ART's own installer makes of stand-in wheels: ART's server, and `tests.fakes.vllm_server` as vLLM."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from unittest.mock import patch

from art import vllm_runtime

ROOT = Path(__file__).parents[2]
PROJECT = """[project]
name = "art-vllm-runtime"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["vllm @ {vllm}"]
"""
MAIN = "vllm/entrypoints/cli/main.py"
OURS = "from tests.fakes.vllm_server import "
VLLM = {
    "vllm/__init__.py": f"""
import site, sys
site.addsitedir({sysconfig.get_path("purelib")!r})
sys.path.insert(0, {str(ROOT)!r})
""",
    "vllm/entrypoints/openai/api_server.py": f"{OURS}build_app, run_server",
    "vllm/entrypoints/openai/cli_args.py": f"{OURS}make_arg_parser, validate_parsed_serve_args",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    MAIN: f"{OURS}main",
}


def install_runtime(folder: Path, vllm: str | None = None) -> None:
    """Install a runtime in the folder `cache` of `folder`. `vllm` is the source of another `vllm` command."""
    bundle = write_bundle(folder, vllm)
    manifest = vllm_runtime._load_bundled_manifest(bundle)
    with patch.dict(os.environ, offline(folder)):
        vllm_runtime._install_managed_runtime(
            bundle_dir=bundle,
            cache_root=folder / "cache",
            manifest=manifest,
            manifest_hash=vllm_runtime._manifest_hash(manifest),
        )


def write_bundle(folder: Path, vllm: str | None = None) -> Path:
    """Return the folder of a bundle like that in ART's wheel, from which ART installs vLLM."""
    bundle = folder / "bundle"
    bundle.mkdir(parents=True)
    command = "def main():\n" + "".join(f"    {line}\n" for line in (vllm or "").strip().splitlines())
    package = _wheel(bundle, "vllm", "vllm = vllm.entrypoints.cli.main:main", {MAIN: command} if vllm else VLLM)
    server = _wheel(bundle, "art_vllm_runtime", f"{vllm_runtime.RUNTIME_SERVER} = {_SERVER}:main", _server())
    (bundle / "pyproject.toml").write_text(PROJECT.format(vllm=package.as_uri()))
    with patch.dict(os.environ, offline(folder)):
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
    (bundle / "manifest.json").write_text(manifest.model_dump_json())
    return bundle


def offline(folder: Path) -> dict[str, str]:
    """Variables with which uv installs with this Python and without a network."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "UV_PYTHON": sys.executable, "UV_OFFLINE": "1", "UV_CACHE_DIR": str(folder / "uv")}


_SERVER = "art_vllm_runtime.dedicated_server"


def _server() -> dict[str, str]:
    """ART's own server, without its patches of vLLM's modules. Its wheel is for Python 3.12 only."""
    [wheel] = vllm_runtime._bundled_runtime_dir().glob("*.whl")
    path = f"{_SERVER.replace('.', '/')}.py"
    with zipfile.ZipFile(wheel) as files:
        return {
            path: files.read(path).decode(),
            "art_vllm_runtime/patches.py": "def apply_vllm_runtime_patches(): ...\n",
        }


def _wheel(folder: Path, package: str, command: str, sources: dict[str, str]) -> Path:
    path = folder / f"{package}-0.1.0-py3-none-any.whl"
    described = f"{package}-0.1.0.dist-info"
    files = {f"{parent}/__init__.py": "" for name in sources for parent in Path(name).parents if parent.name}
    files |= {
        **sources,
        f"{described}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n",
        f"{described}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{described}/entry_points.txt": f"[console_scripts]\n{command}\n",
    }
    record = f"{described}/RECORD"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(record, "".join(f"{name},,\n" for name in [*files, record]))
    return path
