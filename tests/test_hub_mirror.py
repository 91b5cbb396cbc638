"""Base model, mails, questions and bugs by their ids on the Hub, from the mirror that `HF_ENDPOINT` names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.enron import company, write_enron
from tests.fakes.hub import Hub
from tests.gpu_checkout import tiny_qwen
from tests.tasks.coding.r2e_rows import folder_of, row

pytestmark = pytest.mark.service

READ = """
import json, sys
from pathlib import Path
from environment.sources.detection import mail_source
from environment.sources.parquet import parquet_questions
from tasks.coding.r2e_gym import repository_bugs
from training.backends.base_model import find_base_model, resolve_base_model

base = "Qwen/Qwen2.5-7B-Instruct"
size = find_base_model(base, Path("models")).weight_bytes
model = resolve_base_model(base, Path("models"))
mails = [mail.message_id for mail in mail_source("corbt/enron-emails")]
asked = [question.id for question in parquet_questions("corbt/enron_emails_sample_questions", "test")]
bugs = len(repository_bugs("R2E-Gym/R2E-Gym-Lite", train=None, test=1, seed=0))
print(json.dumps([size, model.checksum, mails, asked, bugs]))
"""

READ_QUIETLY = """
import run

run.quiet_third_parties()
from environment.sources.parquet import parquet_questions

print(len(list(parquet_questions("corbt/enron_emails_sample_questions", "test"))))
"""


def test_everything_comes_from_the_mirror(tmp_path: Path) -> None:
    from training.backends.model_sources.folder import model_checksum

    hub = tmp_path / "hub"
    write_enron(tmp_path / "enron")
    base = tiny_qwen(tmp_path / "qwen", "qwen2", "qwen2_5")
    for origin, place in (
        (base, "models/Qwen/Qwen2.5-7B-Instruct"),
        (tmp_path / "enron" / "emails", "datasets/corbt/enron-emails/data"),
        (tmp_path / "enron" / "questions", "datasets/corbt/enron_emails_sample_questions/data"),
        (folder_of(tmp_path / "bugs", [row(number) for number in range(4)]), "datasets/R2E-Gym/R2E-Gym-Lite/data"),
    ):
        shutil.copytree(origin, hub / place)
    with Hub(hub) as mirror:
        done = python(READ, tmp_path, mirror)
    assert done.returncode == 0, done.stderr
    size, checksum, mails, asked, bugs = json.loads(done.stdout.splitlines()[-1])
    assert (size, checksum) == ((base / "model.safetensors").stat().st_size, model_checksum(base))
    assert mails == [mail.message_id for mail in company().emails()]
    assert asked == [question.id for question in company().scenarios() if question.split == "test"]
    assert bugs == 4


def test_a_busy_hub_is_asked_again_and_its_client_logs_nothing(tmp_path: Path) -> None:
    write_enron(tmp_path / "enron")
    shutil.copytree(tmp_path / "enron" / "questions", tmp_path / "datasets/corbt/enron_emails_sample_questions/data")
    with Hub(tmp_path, busy=2) as mirror:
        done = python(READ_QUIETLY, tmp_path, mirror)
    tested = [question for question in company().scenarios() if question.split == "test"]
    assert (mirror.busy, done.stdout, done.stderr) == (0, f"{len(tested)}\n", "")


def python(code: str, folder: Path, mirror: Hub) -> subprocess.CompletedProcess[str]:
    """Run the code in `folder` in a new process whose Hub is the mirror."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and name != "DATASETS_VERBOSITY"
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=kept | {"HF_ENDPOINT": mirror.url, "HF_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
