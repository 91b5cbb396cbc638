"""Settings of ZenML that it would ignore, or refuse after something else was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.zenml_settings import require_zenml_settings
from commands import deploy
from configs.loading import load_config
from configs.schema import ConfigError
from serving.settings import ServingSettings
from tests.front_door import FrontDoor
from training.errors import BadInput

pytestmark = pytest.mark.service

REFUSED: dict[str, tuple[str, str]] = {
    "an unknown component": ("{deployr: {port: 9000}}", "settings: ZenML knows no 'deployr' there; did you mean 'deployer'?"),
    "an unknown general setting": ("{dokcer: {}}", "did you mean 'docker'?"),
    "a key of another place": ("{uvicorn_workers: 2}", "ZenML knows no 'uvicorn_workers' there"),
    "an unknown key of the deployer": ("{deployer: {prot: 9000}}", "settings.deployer: ZenML knows no 'prot' there; did you mean 'port'?"),
    "the same by flavor": ("{deployer.local: {prot: 9000}}", "settings.deployer.local: ZenML knows no 'prot'"),
    "the same by name": ("{'deployer:default': {prot: 9000}}", "settings.deployer:default: ZenML knows no 'prot'"),
    "a word for a port": ("{deployer: {port: abc}}", "settings.deployer.port: Input should be a valid integer"),
    "a port beyond the last": ("{deployer: {port: 70000}}", "port and port_range are numbers from 1 to 65535"),
    "a port range beyond": ("{deployer: {port_range: [0, 5]}}", "port and port_range are numbers from 1 to 65535"),
    "a word for a time limit": ("{deployer: {lcm_timeout: x}}", "settings.deployer.lcm_timeout: Input should be a valid integer"),
    "a time limit of zero": ("{deployer: {lcm_timeout: 0}}", "lcm_timeout=0: expected seconds above 0"),
    "a key that is no text": ("{deployer: {auth_key: 12345678901234567}}", "settings.deployer.auth_key: Input should be a valid string"),
    "a key that is generated perhaps": ("{deployer: {generate_auth_key: perhaps}}", "settings.deployer.generate_auth_key: Input should be"),
    "no key in words": ("{deployer: {address: 0.0.0.0, generate_auth_key: 'false'}}", "needs a key"),
    "no key under the flavor": ("{deployer.local: {address: 0.0.0.0}}", "needs a key"),
    "a short key under the flavor": ("{deployer.local: {auth_key: short}}", "has 5 characters"),
    "an invalid address under the flavor": ("{deployer.local: {address: here}}", "needs an IPv4 address"),
    "a text": ("{deployer: here}", "settings.deployer: expected `key: value` lines, not 'here'"),
    "a list": ("{deployer: [1]}", "settings.deployer: expected `key: value` lines, not [1]"),
    "two keys for one deployer": ("{deployer: {port: 1}, deployer.local: {port: 2}}", "deployer and deployer.local mean the same deployer"),
    "another deployer": ("{deployer.kubernetes: {}}", "settings.deployer.kubernetes: the active stack has the deployer default (local)"),
    "another name": ("{'deployer:other': {}}", "settings.deployer:other: the active stack has"),
    "an unknown key of the deployment": ("{deployment: {uvicorn_wrkers: 1}}", "did you mean 'uvicorn_workers'?"),
    "an unknown key within": ("{deployment: {cors: {allow_origin: []}}}", "settings.deployment.cors: ZenML knows no 'allow_origin'"),
    "an unknown key of docker": ("{docker: {requirments: []}}", "did you mean 'requirements'?"),
    "an unknown resource": ("{resources: {gpu_cout: 1}}", "did you mean 'gpu_count'?"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_deploy_refuses_settings_that_zenml_ignores_or_refuses_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    settings, said = REFUSED[case]
    assert said in FrontDoor(tmp_path / "door", monkeypatch).refuses(
        "--pipeline", "deploy", "--set", f"settings={settings}"
    )


@pytest.mark.parametrize("profile", ["deployment_k8s", "deployment_torch_gpu_k8s", "deployment_vllm_k8s"])
def test_a_profile_for_a_cluster_on_another_stack_names_the_active_deployer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    refused = FrontDoor(tmp_path / "door", monkeypatch).refuses(
        "--pipeline", "deploy", "--config", f"configs/{profile}.yaml"
    )
    assert "settings.deployer: ZenML knows no 'readiness_probe_" in refused
    assert "; the active stack's deployer is default (local)" in refused


@pytest.mark.parametrize("command", ["data", "train", "learn-loop", "train --dry-run", "train --set task=coding"])
def test_every_command_refuses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    door = FrontDoor(tmp_path / "door", monkeypatch)
    assert "settings.docker: ZenML" in door.refuses(
        "--pipeline", *command.split(), "--set", "settings={docker: {requirments: []}}"
    )


@pytest.mark.parametrize(
    ("configured", "said"),
    [
        ({"step_operatr": "k8s"}, "step_settings.train_agent: ZenML knows no 'step_operatr' there; did you mean 'step_operator'?"),
        ({"retry": {"max_retrys": 2}}, "step_settings.train_agent.retry: ZenML knows no 'max_retrys'"),
        ({"settings": {"resources": {"gpu_count": "many"}}}, "step_settings.train_agent.settings.resources.gpu_count: Input"),
        ({"settings": {"step_operatr": {}}}, "step_settings.train_agent.settings: ZenML knows no 'step_operatr'"),
        ({"settings": "none"}, "step_settings.train_agent.settings: expected"),
        ({"parameters": {"config": {}}}, "step_settings.train_agent: ZenML knows no 'parameters' there"),
        ({"enable_cache": "perhaps"}, "step_settings.train_agent.enable_cache: Input should be a valid boolean"),
    ],
)  # fmt: skip
def test_settings_of_steps_are_checked_too(configured: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        require_zenml_settings({}, {"train_agent": configured})
    assert str(refused.value).startswith(said)


def test_the_projects_own_files_pass() -> None:
    files = list((Path(__file__).parents[2] / "configs").glob("*.yaml"))
    assert len(files) > 10
    for file in files:
        config = load_config(file, []) if file.name != "sandbox.yaml" else None
        if config is not None:
            # The deployer of those for a cluster is none of the tests' stack.
            here = {key: values for key, values in config.settings.items() if not key.startswith("deployer")}
            require_zenml_settings(here, config.step_settings)


def test_settings_under_the_flavor_act() -> None:
    given = {"deployer.local": {"port": 9000, "auth_key": "sixteen characters"}}
    settings = deploy._zenml_settings(8080, "127.0.0.1", ServingSettings(), given)
    assert settings["deployer"] | {"port": 9000, "auth_key": "sixteen characters"} == settings["deployer"]
    assert "deployer.local" not in settings


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("trainer:\n  max_steps: 3\ntrainer:\n  seed: 1\n", "'trainer' stands in lines 1 and 3"),
        ("trainer:\n  max_steps: 3\n  max_steps: 4\n", "'max_steps' stands in lines 2 and 3"),
        ("max_steps: 3\nseed: 1\n'max_steps': 4\n", "'max_steps' stands in lines 1 and 3"),
        ("settings: {deployer: {port: 1, port: 2}}\n", "'port' stands in lines 1 and 1"),
        ("step_settings:\n  train_agent: {}\n  train_agent: {}\n", "'train_agent' stands in lines 2 and 3"),
    ],
)  # fmt: skip
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, text: str, lines: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"is not YAML: {lines}: keep one of them"):
        load_config(file, [])


def test_merged_keys_may_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("step_settings:\n  a: &a {enable_cache: true}\n  b: {<<: *a, enable_cache: false}\n")
    assert load_config(file, []).step_settings == {"a": {"enable_cache": True}, "b": {"enable_cache": False}}
    with pytest.raises(ConfigError, match="is not a YAML value"):
        load_config(None, ["settings={a: 1, a: 2}"])
    assert yaml.safe_load("{a: 1, a: 2}") == {"a": 2}, "what YAML's own loader makes of it"
