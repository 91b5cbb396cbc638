from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from zenml.config import DeploymentSettings
from zenml.deployers.base_deployer import BaseDeployerSettings
from zenml.deployers.local.local_deployer import LocalDeployerSettings

from commands import deploy
from commands.deploy import run_deploy
from configs.loading import load_config
from pipelines.inference import inference_pipeline
from serving.key_file import read_keys
from serving.runner import with_keys
from serving.settings import AccessKey, ServingSettings
from training.errors import BadInput

pytestmark = pytest.mark.service


def test_a_service_beyond_loopback_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    deployer = SimpleNamespace(flavor="local", settings_class=LocalDeployerSettings)
    monkeypatch.setattr(deploy.BaseDeployer, "get_active_deployer", lambda: deployer)
    key = AccessKey(name="ann", sha256="0" * 64, inboxes=("ann@kestrel.example",))

    def settings(address: str, serving: ServingSettings = ServingSettings(), **of_deployer: Any) -> dict[str, Any]:  # noqa: B008
        return deploy._zenml_settings(8080, address, serving, {"deployer": of_deployer})

    assert settings("127.0.0.1")["deployer"]["port"] == 8080
    with_key = settings("0.0.0.0", auth_key="sixteen characters")
    assert with_key["deployer"]["auth_key"] == "sixteen characters"
    assert (with_key["deployer"]["port"], with_key["deployer"]["address"]) == (8080, "0.0.0.0"), (
        "a key leaves the rest as it is"
    )
    assert settings("0.0.0.0", generate_auth_key=True)
    assert settings("127.0.0.2")
    for address in ("::1", "localhost", "127.0.0.1.somewhere.example"):
        with pytest.raises(BadInput, match="needs an IPv4 address"):
            settings(address)
    with pytest.raises(BadInput, match="address=192.0.2.1: this machine has no such address"):
        settings("192.0.2.1", auth_key="sixteen characters")
    with pytest.raises(BadInput, match="ZenML knows no 'uvicorn_wrkers'"):
        deploy._zenml_settings(
            8080, "127.0.0.1", ServingSettings(), {"deployment": {"uvicorn_wrkers": 3}, "deployer": None}
        )
    with pytest.raises(BadInput, match="ASCII"):
        settings("127.0.0.1", auth_key="sixteen charäcters")
    passed = settings("0.0.0.0", ServingSettings(keys=(key,)))["deployment"].deployment_app_runner_kwargs
    assert ServingSettings.model_validate(passed["serving"]).keys == (key,)
    for open_to_all in ({}, {"auth_key": "short"}):
        with pytest.raises(BadInput, match="key"):
            settings("0.0.0.0", **open_to_all)
    deployer.flavor = "kubernetes"
    with pytest.raises(BadInput, match="key"):
        settings("127.0.0.1")
    assert "port" not in settings("127.0.0.1", generate_auth_key=True)["deployer"]


@pytest.mark.parametrize(
    "content",
    [
        *(
            "",
            "ann: x",
            "- {name: ann, key: short}",
            "- {name: ann}",
            "[",
            "- {name: owner, key: sixteen characters}",
            "[]",
        ),
        "- {name: ann, key: sixteen charäcters}",
        "- {name: ann, key: ' sixteen characters'}",
    ],
)
def test_an_invalid_key_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(content)
    with pytest.raises(BadInput, match="access_keys"):
        read_keys(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "keys.yaml cannot be read (No such file or directory); name a YAML file, expected a list of name, key"),
        ("[", "keys.yaml is not YAML (ParserError); expected a list of name, key"),
        ("ann: x", "keys.yaml: content: input should be a valid list; expected"),
        (
            "- {name: ann, key: sixteen characters}\n- {name: bo, key: short}",
            "entry 2: key: string should have at least 16",
        ),
    ],
)
def test_what_is_wrong_with_a_key_file_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "keys.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadInput) as refused:
        read_keys(file)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_keys_are_known_by_their_digest_only(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        "- {name: ann, key: sixteen characters, inboxes: [ann@kestrel.example]}\n- {name: bo, key: also sixteen chars}\n"
    )
    ann, bo = read_keys(file)
    assert ann.inboxes == ("ann@kestrel.example",) and bo.inboxes is None
    assert "sixteen" not in ann.model_dump_json()


BY_RUN = """
deployment:
  address: 0.0.0.0
  port: 9000
  access_keys: {keys}
  allowed_hosts: [agent.example]
  question_timeout: 60
  max_waiting: 8
  feedback_folder: {feedback}
settings: {{deployer: {{auth_key: sixteen characters}}}}
"""
BY_ZENML = """
settings:
  deployer: {{address: 0.0.0.0, port: 9000, port_range: [9000, 65535], auth_key: sixteen characters}}
  deployment:
    deployment_app_runner_kwargs:
      serving:
        keys_file: {keys}
        allowed_hosts: [agent.example]
        timeout: 60
        max_waiting: 8
        feedback_folder: {feedback}
"""


def as_served(configured: Any) -> tuple[ServingSettings, LocalDeployerSettings, Any]:
    """Return what the service is told: its own settings, the deployer's, and the application that runs."""
    settings = configured.configuration.settings
    deployment = DeploymentSettings.model_validate(settings["deployment"].model_dump())
    serving = ServingSettings.model_validate(deployment.deployment_app_runner_kwargs.get("serving", {}))
    deployer = LocalDeployerSettings.model_validate(settings["deployer"].model_dump())
    return with_keys(serving), deployer, deployment.deployment_app_runner_flavor


@pytest.mark.parametrize("configured", [True, False])
def test_both_commands_serve_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool) -> None:
    """`run.py --pipeline deploy` and `zenml pipeline deploy`, each with its own configuration file or with none."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {name: ann, key: also sixteen chars, inboxes: [ann@kestrel.example]}")
    files = {}
    for name, text in (("run", BY_RUN), ("zenml", BY_ZENML)):
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(text.format(keys=keys, feedback=tmp_path / "feedback"))
    deployer = SimpleNamespace(flavor="local", settings_class=LocalDeployerSettings)
    monkeypatch.setattr(deploy.BaseDeployer, "get_active_deployer", lambda: deployer)
    recorded: dict[str, Any] = {}
    monkeypatch.setattr(deploy, "deploy_inference", lambda name, **arguments: recorded.update(arguments) or "http://x")
    config = load_config(files["run"] if configured else None, [])
    run_deploy(config, "agent", checkpoint=None, base_model=None)
    chosen = {name: recorded[name] for name in ("port", "address", "serving", "settings")}
    by_run = inference_pipeline.with_options(settings=deploy._zenml_settings(**chosen))
    by_zenml = inference_pipeline.with_options(config_path=str(files["zenml"])) if configured else inference_pipeline
    assert as_served(by_run) == as_served(by_zenml)
    serving, _, flavor = as_served(by_zenml)
    assert [key.name for key in serving.keys] == ["ann"] * configured
    assert (serving.max_waiting, serving.timeout) == ((8, 60) if configured else (32, 120))
    assert flavor.attribute == "ServiceRunnerFlavor"


def test_invalid_hosts_are_refused(tmp_path: Path) -> None:
    config = load_config(None, ["allowed_hosts=[https://agent.example]"])
    with pytest.raises(BadInput, match="allowed_hosts: 'https://agent.example' is not a host name"):
        run_deploy(config, "agent", checkpoint=None, base_model=None)


@pytest.mark.parametrize(
    ("flavor", "overrides", "folder"),
    [
        ("local", [], deploy.HOME / "outputs/feedback"),
        ("local", ["feedback_folder=~/ratings"], Path.home() / "ratings"),
        ("kubernetes", [], Path("outputs/feedback")),
    ],
)
def test_ratings_are_kept_where_the_service_runs(
    flavor: str, overrides: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        deploy.BaseDeployer, "get_active_deployer", lambda: SimpleNamespace(flavor=flavor, settings_class=None)
    )
    recorded: dict[str, Any] = {}
    monkeypatch.setattr(deploy, "deploy_inference", lambda name, **arguments: recorded.update(arguments) or "http://x")
    run_deploy(load_config(None, overrides), "agent", checkpoint=None, base_model=None)
    assert recorded["serving"].feedback_folder == folder


@pytest.mark.parametrize("published", [True, False])
def test_a_service_elsewhere_downloads_no_base_model_to_this_machine(
    published: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It comes from the artifact store, or from its source to the pods."""

    def deployed(*_: object, **options: Any) -> Any:
        pinned.update(options["on_init_kwargs"])
        return SimpleNamespace(deploy=lambda **_: SimpleNamespace(url="http://service.example"))

    manifest = SimpleNamespace(
        step=3, name="r1", base_model_source="Qwen/Qwen2.5-7B-Instruct", base_model_checksum="0" * 64, config={}
    )
    stored = SimpleNamespace(
        checkpoint=SimpleNamespace(manifest=manifest, require_task=lambda _: None),
        model_version=None,
        reference="checkpoint-1",
    )
    pinned: dict[str, Any] = {}
    said: list[str] = []
    monkeypatch.setattr(
        deploy.BaseDeployer,
        "get_active_deployer",
        lambda: SimpleNamespace(flavor="kubernetes", settings_class=BaseDeployerSettings),
    )
    monkeypatch.setattr(deploy, "find_checkpoint", lambda *_, **__: stored)
    monkeypatch.setattr(deploy, "find_mail_database", lambda *_, latest: SimpleNamespace(id=f"database-{latest}"))
    monkeypatch.setattr(deploy, "describe_other_mail", lambda _, database: f"mail: {database.id}")
    monkeypatch.setattr(deploy, "published_base_model", lambda *_: object() if published else None)
    monkeypatch.setattr(deploy, "base_model_here", lambda *_: None)
    monkeypatch.setattr(deploy, "resolve_base_model", lambda *_, **__: pytest.fail("it was downloaded"))
    monkeypatch.setattr(deploy, "inference_pipeline", SimpleNamespace(with_options=deployed))
    monkeypatch.setattr(deploy, "say", said.append)
    with_key = {"deployer": {"generate_auth_key": True}}
    url = deploy.deploy_inference("agent", settings=with_key, models_dir=tmp_path, latest_mail=True)
    assert url == "http://service.example" and pinned["base_model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert pinned["mail_database"] == "database-True" and "mail: database-True" in said
    assert any("every replica of the service fetches it from its source" in line for line in said) != published
