"""What `make install` adds to the requirements."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from environment.home import VERSION

ROOT = Path(__file__).parents[1]


def test_the_environment_finds_the_project_in_any_folder(tmp_path: Path) -> None:
    clone = tmp_path / "mit Leerzeichen und Umläuten"
    clone.mkdir()
    shutil.copy(ROOT / "Makefile", clone)
    (clone / "requirements.txt").touch()
    (clone / "of_the_project.py").write_text("print('found')")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=clone, check=True)
    (clone / ".venv" / "installed").touch()
    for _ in range(2):
        subprocess.run(["make", "install"], cwd=clone, check=True)
    python = clone / ".venv" / "bin" / "python"
    found = subprocess.run([python, "-m", "of_the_project"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == "found\n"


def test_a_machine_without_a_supported_python_is_told_so_in_one_line(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.txt", "requirements-dev.txt"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    ended = subprocess.run(["make", "run"], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stdout.splitlines() == ["Python 3.11, 3.12 or 3.13 is needed: make run PYTHON=/path/to/python3.11"]
    assert "not found" not in ended.stderr


def test_paths_of_a_demonstration_may_have_spaces(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.txt").touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    (tmp_path / ".venv" / "installed").touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("EMAILS", "QUESTIONS")}

    def told(*words: str) -> list[str]:
        command = ["make", "demo-enron", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    assert {"emails=/Ann's mail", "train_questions=/my questions"} < {
        *told("EMAILS=/Ann's mail", "QUESTIONS=/my questions")
    }
    assert {"emails=data/enron/emails", "train_questions=data/enron/questions"} < {*told()}


def test_an_installed_command_calls_itself_by_its_name(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    for room in ("commands", "environment", "training"):
        shutil.copytree(ROOT / room, installed / room)
    shutil.copy(ROOT / "run.py", installed)
    for words, code in ((["--help"], 0), (["--pipeline", "none"], 2)):
        ended = subprocess.run([sys.executable, installed / "run.py", *words], capture_output=True, text=True)
        assert ended.returncode == code
        assert "email-search-agent --" in ended.stdout + ended.stderr
        assert "run.py --" not in ended.stdout + ended.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
    shown = subprocess.run([sys.executable, ROOT / "run.py", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"email-search-agent {VERSION}\n"
