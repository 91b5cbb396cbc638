"""Rehearsals of the GPU profiles: ART's own `LocalBackend`, whose vLLM and Unsloth are stand-ins on a CPU (docs/gpu.md)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tests.fakes.gpu_packages
from tests.checkout import Checkout, settings
from tests.fakes.judge import JudgeModel, by_id
from tests.fakes.vllm_runtime import offline, write_bundle
from tests.ports import free_port
from tests.training.backends.torch.tiny_models import save_tiny_model

pytestmark = pytest.mark.service

BOB = "bob@enron.com"
SMALL = settings(groups_per_step=1, max_steps=2, validate_every=2, validation_questions=2, eval_limit=2, health_seconds=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("qwen"), "qwen2", context=8192)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout on a machine with one GPU, which has neither vLLM yet nor a network."""
    checkout = Checkout.create(tmp_path / "project")
    checkout.environment |= offline(tmp_path) | {
        "PYTHONPATH": str(Path(tests.fakes.gpu_packages.__file__).parent),
        "REHEARSED_GPUS": "1",
        "REHEARSED_VLLM_BUNDLE": str(write_bundle(tmp_path)),
        "ART_VLLM_RUNTIME_CACHE_DIR": str(tmp_path / "vllm"),
        "HF_HUB_OFFLINE": "1",
    }
    return checkout


class Judge(JudgeModel):
    """RULER, and the judge of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = lambda ids, asked: by_id(ids) if ids else json.dumps({"reasoning": "", "accept": True})


@pytest.fixture
def judge() -> Iterator[Judge]:
    with Judge() as judge:
        yield judge


def write_mails(folder: Path) -> list[str]:
    """Write mails and questions in the columns of the Hub's Enron data sets, and return the words that name them."""
    mails: list[dict[str, Any]] = []
    questions: list[dict[str, Any]] = []
    for number in range(12):
        place = f"room {4000 + number}"
        mail = {"message_id": f"<{number}@thyme>", "subject": f"Meeting {number}", "from": "ann@enron.com", "to": [BOB]}
        mails.append(
            {
                **mail,
                **{"cc": [""], "bcc": [""], "date": datetime(2001, 10, 1 + number), "file_name": "allen-p/inbox"},
                "body": f"Meeting {number} takes place in {place}.",
            }
        )
        question = {"id": number, "question": f"Where does meeting {number} take place?", "answer": place}
        questions.append(
            {
                **question,
                **{"message_ids": [f"<{number}@thyme>"], "how_realistic": 0.9, "inbox_address": BOB},
                "query_date": "2001-11-13",
            }
        )
    for name, rows in (("emails", mails), ("questions", questions)):
        (folder / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / name / "train.parquet")
    return settings(emails=folder / "emails", train_questions=folder / "questions")


def vllm_log(checkout: Checkout) -> list[str]:
    """What vLLM was told to do during the training."""
    [log] = (checkout.folder / "outputs").rglob("vllm-runtime.log")
    return [line for line in log.read_text().splitlines() if line.startswith("vllm ")]


def ask(url: str) -> dict[str, Any]:
    body = json.dumps({"parameters": {"question": "Where?", "inbox_address": BOB, "query_date": "2001-11-13"}})
    asked = Request(f"{url}/invoke", body.encode(), {"Content-Type": "application/json"})
    with urlopen(asked, timeout=600) as response:
        return json.load(response)


def test_the_mail_profile_on_one_gpu_from_data_to_an_answer(checkout: Checkout, base: Path, judge: Judge) -> None:
    words = ["--config", "configs/training_local.yaml", *write_mails(checkout.folder), *SMALL]
    words += settings(base_model=base, max_tokens=32, max_turns=2)
    words += settings(ruler_api_base=judge.url, judge_api_base=judge.url)
    done = checkout.run_alone("--pipeline", "all", *words, "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert list(summary["policies"]) == ["base", "trained"]
    assert all(row["errors"] == 0 for row in summary["policies"].values())
    rows = checkout.history()
    assert [row["checkpoint_step"] for row in rows] == [0, 1, 2] and all(row["groups_trained"] for row in rows[1:])
    log = vllm_log(checkout)
    assert log[:2] == ["vllm serves on GPU 0", "vllm loads email-search-agent@0"]
    assert log[2:] == [
        line
        for step in (1, 2)
        for line in ("vllm sleeps", "vllm wakes up", f"vllm loads email-search-agent@{step}")
    ]

    deployed = checkout.run_alone("--pipeline", "deploy", "--name", "one", "--unpromoted", *settings(port=free_port()))
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    try:
        found = re.search(r"http://[^\s/]+", deployed.stdout)
        assert found, deployed.stdout
        assert {"question", "answer", "source_ids", "success"} <= set(ask(found[0]))
        with urlopen(f"{found[0]}/model", timeout=60) as response:
            assert "vllm" in response.read().decode().lower()
    finally:
        zenml = [str(Path(checkout.command()[0]).with_name("zenml")), "deployment", "deprovision", "one", "-y"]
        os.spawnve(os.P_WAIT, zenml[0], zenml, checkout.environment)
