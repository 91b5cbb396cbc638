"""A deployment refuses damaged files before the service that runs is stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from zenml.deployers.local.local_deployer import LocalDeployerSettings

from commands import deploy
from environment.email_db import MailDatabase
from environment.errors import BadMail
from steps.inference.service_lifecycle import episode_settings
from training.backends.serving import serving_settings
from training.errors import BadInput

pytestmark = pytest.mark.service


DAMAGES = {
    "a cut configuration of the adapter": ("checkpoint/adapter_config.json", "adapter_config.json is not what"),
    "cut weights of the adapter": ("checkpoint/adapter_model.safetensors", "adapter_model.safetensors is not what"),
    "a cut manifest": ("checkpoint/manifest.json", "manifest.json is damaged"),
    "a cut tokenizer": ("base/tokenizer.json", "the tokenizer or chat template in .* cannot be used"),
    "a cut chat template": ("base/chat_template.jinja", "the tokenizer or chat template in .* cannot be used"),
    "a cut database": ("mails.sqlite", "is cut short|is not a mail database"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_nothing_that_runs_is_stopped_for_a_damaged_file(
    tiny_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    store = Path(shutil.copytree(tiny_store, tmp_path / "store"))
    (store / "tiny").rename(store / "checkpoint")
    database = SimpleNamespace(id="1", load=lambda: MailDatabase(store / "mails.sqlite"))
    monkeypatch.setattr(
        deploy.BaseDeployer,
        "get_active_deployer",
        lambda: SimpleNamespace(flavor="local", settings_class=LocalDeployerSettings),
    )
    monkeypatch.setattr(deploy, "find_mail_database", lambda *_, **__: database)
    monkeypatch.setattr(deploy, "describe_other_mail", lambda *_: None)
    deployed: list[str] = []
    service = SimpleNamespace(
        deploy=lambda deployment_name: deployed.append(deployment_name) or SimpleNamespace(url="u")
    )
    monkeypatch.setattr(deploy, "inference_pipeline", SimpleNamespace(with_options=lambda **_: service))
    named = {"checkpoint": str(store / "checkpoint"), "base_model": str(store / "base")}
    assert deploy.deploy_inference("one", **named) == "u" and deployed == ["one"]
    file, said = DAMAGES[damage]
    (store / file).write_bytes((store / file).read_bytes()[:-30])
    with pytest.raises((BadInput, BadMail), match=said):
        deploy.deploy_inference("one", **named)
    assert deployed == ["one"]


def test_settings_of_a_checkpoint_that_cannot_be_used_are_one_line() -> None:
    with pytest.raises(BadInput, match="its settings cannot be used: max_turns"):
        episode_settings({"max_turns": "many"})
    with pytest.raises(BadInput, match="settings of the torch backend cannot be used"):
        serving_settings({"torch": {"base_weights": "int3"}})
