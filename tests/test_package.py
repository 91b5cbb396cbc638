"""The wheel: it holds every file of the rooms, and its command keeps nothing next to the installed code."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_structure import ROOMS

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


def test_it_has_every_file_of_the_rooms_and_nothing_else(wheel: Path) -> None:
    rooms = [room for room in ROOMS if room != "benchmarks"]
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "run.py", *rooms]
    tracked = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        [entry_points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert archive.read(entry_points).decode().split("\n")[1] == "email-search-agent = run:from_terminal"
    assert names == {name for name in tracked if name and (ROOT / name).is_file()}
    assert wheel.stat().st_size < 1_500_000


def test_the_command_works_anywhere_and_keeps_its_data_with_the_user(wheel: Path, tmp_path: Path) -> None:
    code, here, home = tmp_path / "site-packages", tmp_path / "here", tmp_path / "home"
    for folder in (code, here, home):
        folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(code)
    before = {file for file in code.rglob("*") if "__pycache__" not in file.parts}
    environment = {"PYTHONPATH": str(code), "HOME": str(home), "ZENML_CONFIG_PATH": str(tmp_path / "zenml")}
    small = [f"--set=synthetic_{split}_inboxes=1" for split in ("train", "test")]
    called = [sys.executable, "-c", "import run; raise SystemExit(run.from_terminal())", "--pipeline", "data", *small]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ZENML", "XDG"))}
    done = subprocess.run(called, cwd=here, env=kept | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "360 mails" in done.stdout, done.stderr
    assert (home / ".local/share/email-search-agent/data/mail_database.sqlite").is_file()
    assert not list(here.iterdir())
    assert before == {file for file in code.rglob("*") if "__pycache__" not in file.parts}
